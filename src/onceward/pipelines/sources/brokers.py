"""Queues as sources, and for ``onceward work``: each by the worker that there is for it.

A field of the settings is the worker's argument of that name. The first one names the queue.
"""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, cast

import msgspec
from msgspec import Meta

from onceward.errors import OncewardError
from onceward.lazily import at
from onceward.once import Once
from onceward.pipelines.flow import Flow, FlowWorker, Runs, SourceSettings
from onceward.pipelines.kit import Kit
from onceward.pipelines.settings import Text


class WorkerSource(SourceSettings):
    """A queue. The first field names it."""

    worker: ClassVar[str]  # module:class
    library: ClassVar[tuple[str, str] | None] = None  # the module that it needs, and the extra that brings it

    def check(self, kit: "Kit") -> None:
        if self.library is not None and not kit.needs("", *self.library):
            return
        with kit.noting("", ValueError, TypeError):
            self.make(self.worker_class(), kit.once, _nothing)

    def open(self, flow: "Flow") -> "Runs":
        flowing = type("Flowing", (FlowWorker, self.worker_class()), {"flow": flow})
        return cast("Runs", self.make(flowing, flow.built.once, flow.handler, **flow.options))

    def make(self, worker: Any, once: Once, handler: Callable[..., object], **options: Any) -> Any:
        """Return a worker of a class for this queue."""
        fields = msgspec.structs.asdict(self)
        return worker(once, fields.pop(next(iter(fields))), handler, **fields, **options)

    def worker_class(self) -> Any:
        """Return the class of the worker."""
        return at(self.worker)


async def _nothing(message: Any) -> None:
    """Stand for the handler, while only the worker's arguments are checked."""


class KafkaSource(WorkerSource):
    """A topic of Kafka. A record's own key is its header Idempotency-Key, else its place in the topic.

    Attributes:
        topic: Its name.
        servers: host:port,host:port. By default those of KAFKA_SERVERS, else localhost:9092.
        group: The consumer group. By default the namespace of the keys.
        order: Handle the records of a partition one after the other, in order.
        retry: The retry topic. By default TOPIC.onceward-retry.
        dead: The dead-letter topic. By default TOPIC.onceward-dead.
        settings: More settings of aiokafka's consumer, such as session_timeout_ms: 30000.
    """

    topic: Text
    servers: str | None = None
    group: str | None = None
    order: bool = False
    retry: str | None = None
    dead: str | None = None
    settings: dict[str, Any] | None = None

    worker = "onceward.kafka.broker:KafkaWorker"
    library = ("aiokafka", "kafka")


class NatsSource(WorkerSource):
    """A subject of NATS JetStream. A message's own key is its header Idempotency-Key, else Nats-Msg-Id, else its place.

    Attributes:
        subject: The subject's name. If it has wildcards, give `dead`, too.
        url: nats://user:password@host:4222; several with commas. By default that of NATS_URL.
        stream: The stream of the subject. By default the stream that takes the subject.
        durable: The name of the consumer. By default the namespace of the keys.
        dead: The subject of the dead letters. By default SUBJECT.onceward-dead.
        settings: More settings of the connection, such as user_credentials: shop.creds.
    """

    subject: Text
    url: str | None = None
    stream: str | None = None
    durable: str | None = None
    dead: str | None = None
    settings: dict[str, Any] | None = None

    worker = "onceward.nats.broker:NatsWorker"
    library = ("nats", "nats")


class RabbitmqSource(WorkerSource):
    """A queue of RabbitMQ. A message's own key is its header Idempotency-Key, else its message id.

    Attributes:
        queue: The queue's name. The queue must exist, as a durable quorum queue.
        url: amqp://user:password@host/vhost, or amqps:// for TLS. By default that of AMQP_URL.
        dead: The dead-letter queue. By default QUEUE.onceward-dead.
        prefetch: How many unacknowledged messages RabbitMQ sends to the worker. By default twice the concurrency.
        wait: After how many seconds the worker looks at an empty queue again.
    """

    queue: Text
    url: str | None = None
    dead: str | None = None
    prefetch: Annotated[int, Meta(ge=1, le=65_535)] | None = None
    wait: Annotated[float, Meta(gt=0, le=60)] = 2

    worker = "onceward.rabbitmq.broker:RabbitWorker"
    library = ("aio_pika", "rabbitmq")


class RedisStreamsSource(WorkerSource):
    """A stream of Redis. An entry's own key is its header Idempotency-Key, else its place in the stream.

    Attributes:
        stream: Its name.
        url: redis://user:password@host:6379/0, or rediss:// for TLS. By default that of REDIS_URL.
        group: The consumer group. By default the namespace of the keys.
        dead: The stream of the dead letters. By default STREAM.onceward-dead.
        idle: After how many seconds another worker claims the entries of a killed worker. All workers must give the
            same number.
    """

    stream: Text
    url: str | None = None
    group: str | None = None
    dead: str | None = None
    idle: Annotated[float, Meta(ge=1, le=86_400)] = 60

    worker = "onceward.redis_streams.broker:RedisStreamsWorker"
    library = ("redis", "redis")


class SqsSource(WorkerSource):
    """A queue of Amazon SQS. A message's own key is its attribute onceward-key, else its id.

    Attributes:
        queue: Its URL, ARN or name.
        unwrap: sns, if the messages come from an SNS topic without raw delivery.
        visibility: After how many seconds another worker receives the message of a killed worker. By default the
            queue's setting.
        wait: Seconds that a poll waits for a message.
    """

    queue: Text
    unwrap: Literal["sns"] | None = None
    visibility: Annotated[int, Meta(ge=1, le=43_200)] | None = None
    wait: Annotated[float, Meta(ge=0, le=20)] = 20

    worker = "onceward.aws.sqs.broker:SqsWorker"


class LambdaSource(SourceSettings):
    """Events of AWS Lambda: SQS, Kinesis, DynamoDB, Kafka, Amazon MQ, SNS, EventBridge, S3, Firehose, and direct invocations.

    The handler is onceward.pipelines.lambda_handler. It takes the events of any trigger. The default keys are those of the
    trigger, such as message ids.

    Attributes:
        unwrap: sns, if an SQS queue has a topic's messages without raw delivery.
        partial: Whether the event source mapping has ReportBatchItemFailures.
        direct: Whether an event that comes from no known trigger is a message. Such an event is a direct invocation.
    """

    unwrap: Literal["sns"] | None = None
    partial: bool = True

    direct: bool = False

    holds = False

    def open(self, flow: "Flow") -> "Runs":
        raise OncewardError(
            f"{flow.built.model.name} runs in AWS Lambda, with the handler onceward.pipelines.lambda_handler: see "
            "docs/how-to/pipelines.md"
        )
