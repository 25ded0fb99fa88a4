"""The source ``kafka``."""

from typing import Annotated, Any, ClassVar

from msgspec import Meta

from onceward.pipelines.sources.brokers import WorkerSource


class KafkaSource(WorkerSource, kw_only=True):
    """A topic of Kafka. A record's own key is its header Idempotency-Key, else its place in the topic."""

    topic: Annotated[str, Meta(description="Its name.", min_length=1)]
    servers: Annotated[
        str | None, Meta(description="host:port,host:port. By default those of KAFKA_SERVERS, else localhost:9092.")
    ] = None
    group: Annotated[str | None, Meta(description="The consumer group. By default the pipeline's name.")] = None
    order: Annotated[bool, Meta(description="Handle the records of a partition one after the other, in order.")] = False
    retry: Annotated[str | None, Meta(description="The retry topic. By default TOPIC.onceward-retry.")] = None
    dead: Annotated[str | None, Meta(description="The dead-letter topic. By default TOPIC.onceward-dead.")] = None
    settings: Annotated[
        dict[str, Any] | None,
        Meta(description="More settings of aiokafka's consumer, such as session_timeout_ms: 30000."),
    ] = None

    worker: ClassVar[str] = "onceward.kafka.worker:KafkaWorker"
    library: ClassVar[tuple[str, str] | None] = ("aiokafka", "kafka")
