"""Queues as sources, and for ``onceward work``: each by the worker that there is for it.

A field of the settings is the worker's argument of that name. The first one names the queue.
"""

import re
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

from msgspec import Meta

from onceward.pipelines.contract import SourceSettings
from onceward.pipelines.settings import fields_of

if TYPE_CHECKING:
    from onceward.pipelines.contract import Runs
    from onceward.pipelines.flow import Flow
    from onceward.pipelines.kit import Kit


class WorkerSource(SourceSettings):
    """A queue. The first field names it."""

    worker: ClassVar[str]  # module:class
    library: ClassVar[tuple[str, str] | None] = None  # the module that it needs, and the extra that brings it

    def check(self, kit: "Kit") -> None:
        if self.library is not None and not kit.needs("", *self.library):
            return
        place, *options = self.given()
        try:
            self.worker_class()(kit.once, place[1], _nothing, **dict(options))
        except (ValueError, TypeError) as error:
            # Most errors begin with the argument that they are about.
            named = re.match(r"(\w+)=", str(error))
            fields = {name for name, _ in fields_of(type(self))}
            kit.mistake(named[1] if named is not None and named[1] in fields else "", str(error))

    def open(self, flow: "Flow") -> "Runs":
        from onceward.pipelines.flow import FlowWorker

        place, *options = self.given()
        flowing: Any = type("Flowing", (FlowWorker, self.worker_class()), {})
        made = flowing(flow.once, place[1], flow.handler, **dict(options), **flow.options)
        made.flow = flow
        return cast("Runs", made)

    def given(self) -> list[tuple[str, object]]:
        """Return the worker's arguments by name, that which names the queue first."""
        return [(name, getattr(self, name)) for name, _ in fields_of(type(self))]

    def worker_class(self) -> Any:
        """Return the class of the worker."""
        module, _, name = self.worker.partition(":")
        return getattr(import_module(module), name)


async def _nothing(message: Any) -> None:
    """Stand for the handler, while only the worker's arguments are checked."""


class KafkaSource(WorkerSource, kw_only=True):
    """A topic of Kafka. A record's own key is its header Idempotency-Key, else its place in the topic."""

    topic: Annotated[str, Meta(description="Its name.", min_length=1)]
    servers: Annotated[
        str | None, Meta(description="host:port,host:port. By default those of KAFKA_SERVERS, else localhost:9092.")
    ] = None
    group: Annotated[str | None, Meta(description="The consumer group. By default the namespace of the keys.")] = None
    order: Annotated[bool, Meta(description="Handle the records of a partition one after the other, in order.")] = False
    retry: Annotated[str | None, Meta(description="The retry topic. By default TOPIC.onceward-retry.")] = None
    dead: Annotated[str | None, Meta(description="The dead-letter topic. By default TOPIC.onceward-dead.")] = None
    settings: Annotated[
        dict[str, Any] | None,
        Meta(description="More settings of aiokafka's consumer, such as session_timeout_ms: 30000."),
    ] = None

    worker: ClassVar[str] = "onceward.kafka.broker:KafkaWorker"
    library: ClassVar[tuple[str, str] | None] = ("aiokafka", "kafka")


class NatsSource(WorkerSource, kw_only=True):
    """A subject of NATS JetStream. A message's own key is its header Idempotency-Key, else Nats-Msg-Id, else its place."""

    subject: Annotated[str, Meta(description="Its name. It may have wildcards; then give dead, too.", min_length=1)]
    url: Annotated[
        str | None,
        Meta(description="nats://user:password@host:4222; several with commas. By default that of NATS_URL."),
    ] = None
    stream: Annotated[str | None, Meta(description="Its stream. By default the one that takes the subject.")] = None
    durable: Annotated[
        str | None, Meta(description="The name of the consumer. By default the namespace of the keys.")
    ] = None
    dead: Annotated[
        str | None, Meta(description="The subject of the dead letters. By default SUBJECT.onceward-dead.")
    ] = None
    settings: Annotated[
        dict[str, Any] | None,
        Meta(description="More settings of the connection, such as user_credentials: shop.creds."),
    ] = None

    worker: ClassVar[str] = "onceward.nats.broker:NatsWorker"
    library: ClassVar[tuple[str, str] | None] = ("nats", "nats")


class RabbitmqSource(WorkerSource, kw_only=True):
    """A queue of RabbitMQ. A message's own key is its header Idempotency-Key, else its message id."""

    queue: Annotated[str, Meta(description="Its name. It must be there, as a durable quorum queue.", min_length=1)]
    url: Annotated[
        str | None,
        Meta(description="amqp://user:password@host/vhost, or amqps:// for TLS. By default that of AMQP_URL."),
    ] = None
    dead: Annotated[
        str | bool,
        Meta(
            description="The dead-letter queue. By default QUEUE.onceward-dead. With false the ledger keeps messages."
        ),
    ] = True
    prefetch: Annotated[
        Annotated[int, Meta(ge=1, le=65_535)] | None,
        Meta(description="Messages that RabbitMQ hands over at a time. By default twice the concurrency."),
    ] = None
    wait: Annotated[float, Meta(description="Seconds after which an empty queue is looked at again.", gt=0, le=60)] = 2

    worker: ClassVar[str] = "onceward.rabbitmq.broker:RabbitWorker"
    library: ClassVar[tuple[str, str] | None] = ("aio_pika", "rabbitmq")


class RedisStreamsSource(WorkerSource, kw_only=True):
    """A stream of Redis. An entry's own key is its header Idempotency-Key, else its place in the stream."""

    stream: Annotated[str, Meta(description="Its name.", min_length=1)]
    url: Annotated[
        str | None,
        Meta(description="redis://user:password@host:6379/0, or rediss:// for TLS. By default that of REDIS_URL."),
    ] = None
    group: Annotated[str | None, Meta(description="The consumer group. By default the namespace of the keys.")] = None
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

    worker: ClassVar[str] = "onceward.redis_streams.broker:RedisStreamsWorker"
    library: ClassVar[tuple[str, str] | None] = ("redis", "redis")


class SqsSource(WorkerSource, kw_only=True):
    """A queue of Amazon SQS. A message's own key is its attribute onceward-key, else its id."""

    queue: Annotated[str, Meta(description="Its URL, ARN or name.", min_length=1)]
    unwrap: Annotated[
        Literal["sns"] | None, Meta(description="sns, if the queue has a topic's messages without raw delivery.")
    ] = None
    visibility: Annotated[
        Annotated[int, Meta(ge=1, le=43_200)] | None,
        Meta(
            description="Seconds until another worker receives a killed worker's message. By default the queue's own."
        ),
    ] = None
    wait: Annotated[float, Meta(description="Seconds that a poll waits for a message.", ge=0, le=20)] = 20

    worker: ClassVar[str] = "onceward.aws.sqs.broker:SqsWorker"
