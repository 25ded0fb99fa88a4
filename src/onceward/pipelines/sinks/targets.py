"""The sinks that stand on the outbox: their message leaves exactly when its key is completed."""

from typing import Annotated, ClassVar
from urllib.parse import quote, urlencode

from msgspec import Meta

from onceward.outbox.targets import OutboxMessage, open_target
from onceward.pipelines.call import PipelineCall, PipelineMessage, text_of
from onceward.pipelines.kit import Kit, SinkAction, SinkSettings
from onceward.pipelines.settings import MESSAGE, Expression, PathFinder, Seconds, Text, given


class OutboxSink(SinkSettings):
    """A target of the outbox. The first field names it.

    Attributes:
        message: What is sent: a text unchanged, everything else as JSON.
        headers: Headers or attributes, if the target has them. A text is sent unchanged, everything else as JSON. A
            header that is null is left out. The ledger keeps headers until they are sent, so put no secret here.
    """

    message: Expression = given(MESSAGE)
    headers: dict[str, Expression] = {}

    scheme: ClassVar[str]

    @property
    def title(self) -> str:
        return self.address

    @property
    def address(self) -> str:
        """The target's address in the outbox."""
        place = getattr(self, next(iter(type(self).__annotations__)))
        return _with_options(f"{self.scheme}:{place}", region=getattr(self, "region", None))

    def build(self, kit: "Kit") -> SinkAction:
        # Not every kind of target has them.
        group: PathFinder | None = getattr(self, "group", None)
        delay: float | None = getattr(self, "delay", None)
        address = self.address
        with kit.noting("", ValueError, TypeError, ImportError):
            # An empty object with the settings of this sink: a target refuses what it never takes.
            headers, of_group = dict.fromkeys(self.headers, "x"), None if group is None else "g"
            open_target(address).check(OutboxMessage("0" * 36, "{}", headers, delay, of_group))
            kit.needs_outbox("")

        async def send(message: PipelineMessage, call: "PipelineCall") -> None:
            headers = {n: text_of(value) for n, find in self.headers.items() if (value := find(message)) is not None}
            of = None if group is None else group(message)
            call.claim.send(
                address,
                self.message(message),
                key=call.step,
                delay=delay,
                group=None if of is None else text_of(of),
                headers=headers or None,
            )

        return send


Region = Annotated[str | None, Meta(description="Its region, if it is not that of the environment.")]


class SqsSink(OutboxSink, kw_only=True):
    """Send to a queue of SQS. The key is the attribute `onceward-key`, and the deduplication id in a FIFO queue.

    Attributes:
        queue: Its name, URL or ARN.
        group: The message group, which a FIFO queue needs.
        delay: How long the queue hides the message before it can be received, at most 15m.
    """

    queue: Text
    region: Region = None
    group: Expression | None = None
    delay: Seconds | None = None

    scheme = "sqs"


class SnsSink(OutboxSink, kw_only=True):
    """Send to a topic of SNS. The key is the attribute `onceward-key`, and the deduplication id in a FIFO topic.

    Attributes:
        topic: Its ARN.
        group: The message group, which a FIFO topic needs.
    """

    topic: Text
    group: Expression | None = None

    scheme = "sns"


class EventbridgeSink(OutboxSink, kw_only=True):
    """Put events on a bus of EventBridge. The message is the detail, and has the key in its member `onceward`.

    Attributes:
        bus: Its name or ARN.
        source: The source of the events.
        detail_type: Their detail-type.
    """

    bus: Text
    source: Text
    detail_type: Text
    region: Region = None

    @property
    def address(self) -> str:
        kinds = {"source": self.source, "detail-type": self.detail_type}
        return _with_options(f"eventbridge:{self.bus}", **kinds, region=self.region)


class KinesisSink(OutboxSink, kw_only=True):
    """Put records on a stream of Kinesis. The message is a JSON object, and has the key in its member `onceward`.

    Attributes:
        stream: Its name or ARN.
        group: The partition key; by default the message's own key.
    """

    stream: Text
    region: Region = None
    group: Expression | None = None

    scheme = "kinesis"


class FirehoseSink(OutboxSink, kw_only=True):
    """Put lines on a stream of Firehose. The message is a JSON object, and has the key in its member `onceward`.

    Attributes:
        stream: Its name.
    """

    stream: Text
    region: Region = None

    scheme = "firehose"


def _with_options(place: str, **options: str | None) -> str:
    query = urlencode({name: value for name, value in options.items() if value}, quote_via=quote)
    return f"{place}?{query}" if query else place


class KafkaSink(OutboxSink, kw_only=True):
    """Send to a topic of Kafka. The key is the header `Idempotency-Key`.

    Attributes:
        topic: Its name.
        servers: HOST:PORT,HOST:PORT; by default those of KAFKA_SERVERS. No password.
        group: Kafka's key of the record. Kafka keeps the order of records with one key.
    """

    topic: Text
    servers: str | None = None
    group: Expression | None = None

    @property
    def address(self) -> str:
        topic = quote(self.topic, safe="")
        return f"kafka:{topic}" if self.servers is None else f"kafka://{self.servers}/{topic}"


class RabbitmqSink(OutboxSink, kw_only=True):
    """Send to a queue or an exchange of RabbitMQ. The key is the header `Idempotency-Key`, and the message id.

    User and password come from AMQP_URL.

    Attributes:
        queue: The queue.
        exchange: Or the exchange.
        routing_key: The routing key, for an exchange.
        server: HOST:PORT/VHOST; by default that of AMQP_URL. No user or password.
        tls: Whether to connect over TLS to this server.
    """

    queue: str = ""
    exchange: str = ""
    routing_key: str = ""
    server: str | None = None
    tls: bool = False

    @property
    def address(self) -> str:
        place = f"{'amqps' if self.tls else 'amqp'}:{'' if self.server is None else f'//{self.server}'}"
        return _with_options(place, queue=self.queue, exchange=self.exchange, key=self.routing_key)


class NatsSink(OutboxSink, kw_only=True):
    """Send to a subject of JetStream. The key is the headers `Idempotency-Key` and `Nats-Msg-Id`.

    Attributes:
        subject: Its name, without wildcards. A stream must take it.
        servers: HOST:PORT,HOST:PORT. No user.
    """

    subject: Text
    servers: Text = "localhost:4222"

    @property
    def address(self) -> str:
        return f"nats://{self.servers}/{quote(self.subject, safe='')}"


class RedisStreamSink(OutboxSink, kw_only=True):
    """Add to a stream of Redis. The key is the header `Idempotency-Key` of the entry.

    Attributes:
        stream: Its name.
        server: HOST:PORT. No user or password.
        database: The number of the database.
        tls: Whether to connect over TLS.
    """

    stream: Text
    server: Text = "localhost:6379"
    database: Annotated[int, Meta(ge=0)] = 0
    tls: bool = False

    @property
    def address(self) -> str:
        scheme = "rediss-stream" if self.tls else "redis-stream"
        return f"{scheme}://{self.server}/{self.database}/{quote(self.stream, safe='')}"


class HttpSink(OutboxSink, kw_only=True):
    """POST messages to a URL, each after its key is completed. The key is the header `Idempotency-Key`.

    A step `http` sends while the message is handled, and gets the answer.

    Attributes:
        url: The URL, without a user or password.
    """

    url: Text

    @property
    def title(self) -> str:
        return f"POST {self.url}"

    @property
    def address(self) -> str:
        return self.url
