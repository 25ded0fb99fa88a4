"""The source ``redis_streams``."""

from typing import Annotated, ClassVar

from msgspec import Meta

from onceward.pipelines.sources.brokers import WorkerSource


class RedisStreamsSource(WorkerSource, kw_only=True):
    """A stream of Redis. An entry's own key is its header Idempotency-Key, else its place in the stream."""

    stream: Annotated[str, Meta(description="Its name.", min_length=1)]
    url: Annotated[
        str | None,
        Meta(description="redis://user:password@host:6379/0, or rediss:// for TLS. By default that of REDIS_URL."),
    ] = None
    group: Annotated[str | None, Meta(description="The consumer group. By default the pipeline's name.")] = None
    dead: Annotated[
        str | None, Meta(description="The stream of the dead letters. By default STREAM.onceward-dead.")
    ] = None
    idle: Annotated[
        float,
        Meta(
            description="Seconds after which the entries of a killed worker are claimed. All workers must give the same.",
            ge=1,
            le=86_400,
        ),
    ] = 60

    worker: ClassVar[str] = "onceward.redis_streams.worker:RedisStreamsWorker"
    library: ClassVar[tuple[str, str] | None] = ("redis", "redis")
