"""The source ``nats``."""

from typing import Annotated, Any, ClassVar

from msgspec import Meta

from onceward.pipelines.sources.brokers import WorkerSource


class NatsSource(WorkerSource, kw_only=True):
    """A subject of NATS JetStream. A message's own key is its header Idempotency-Key, else Nats-Msg-Id, else its place."""

    subject: Annotated[str, Meta(description="Its name. It may have wildcards; then give dead, too.", min_length=1)]
    url: Annotated[
        str | None,
        Meta(description="nats://user:password@host:4222; several with commas. By default that of NATS_URL."),
    ] = None
    stream: Annotated[str | None, Meta(description="Its stream. By default the one that takes the subject.")] = None
    durable: Annotated[str | None, Meta(description="The name of the consumer. By default the pipeline's name.")] = None
    dead: Annotated[
        str | None, Meta(description="The subject of the dead letters. By default SUBJECT.onceward-dead.")
    ] = None
    settings: Annotated[
        dict[str, Any] | None,
        Meta(description="More settings of the connection, such as user_credentials: shop.creds."),
    ] = None

    worker: ClassVar[str] = "onceward.nats.worker:NatsWorker"
    library: ClassVar[tuple[str, str] | None] = ("nats", "nats")
