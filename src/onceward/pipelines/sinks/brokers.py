"""The sinks ``kafka``, ``rabbitmq``, ``nats`` and ``redis_stream``."""

from typing import Annotated
from urllib.parse import quote, urlencode

from msgspec import Meta

from onceward.pipelines.settings import Expression, Seconds
from onceward.pipelines.sinks.outgoing import OutboxSink

Text = Annotated[str, Meta(min_length=1)]


class KafkaSink(OutboxSink, kw_only=True):
    """Send to a topic of Kafka. The key is the header `Idempotency-Key`."""

    topic: Annotated[Text, Meta(description="Its name.")]
    servers: Annotated[
        str | None, Meta(description="HOST:PORT,HOST:PORT; by default those of KAFKA_SERVERS. No password.")
    ] = None
    group: Annotated[Expression | None, Meta(description="The record's own key: one key keeps its order.")] = None

    @property
    def address(self) -> str:
        topic = quote(self.topic, safe="")
        return f"kafka:{topic}" if self.servers is None else f"kafka://{self.servers}/{topic}"

    @property
    def place(self) -> str:
        return "topic"

    @property
    def ordering(self) -> tuple[Expression | None, Seconds | None]:
        return self.group, None


class RabbitmqSink(OutboxSink, kw_only=True):
    """Send to a queue or an exchange of RabbitMQ. The key is the header `Idempotency-Key`, and the message id.

    User and password come from AMQP_URL.
    """

    queue: Annotated[str, Meta(description="The queue.")] = ""
    exchange: Annotated[str, Meta(description="Or the exchange.")] = ""
    routing_key: Annotated[str, Meta(description="The routing key, for an exchange.")] = ""
    server: Annotated[
        str | None, Meta(description="HOST:PORT/VHOST; by default that of AMQP_URL. No user or password.")
    ] = None
    tls: Annotated[bool, Meta(description="Whether to connect over TLS to this server.")] = False

    @property
    def address(self) -> str:
        named = {"queue": self.queue, "exchange": self.exchange, "key": self.routing_key}
        query = urlencode({name: value for name, value in named.items() if value}, quote_via=quote)
        scheme = "amqps" if self.tls else "amqp"
        return f"{scheme}:?{query}" if self.server is None else f"{scheme}://{self.server}?{query}"


class NatsSink(OutboxSink, kw_only=True):
    """Send to a subject of JetStream. The key is the headers `Idempotency-Key` and `Nats-Msg-Id`."""

    subject: Annotated[Text, Meta(description="Its name, without wildcards. A stream must take it.")]
    servers: Annotated[Text, Meta(description="HOST:PORT,HOST:PORT. No user.")] = "localhost:4222"

    @property
    def address(self) -> str:
        return f"nats://{self.servers}/{quote(self.subject, safe='')}"

    @property
    def place(self) -> str:
        return "subject"


class RedisStreamSink(OutboxSink, kw_only=True):
    """Add to a stream of Redis. The key is the header `Idempotency-Key` of the entry."""

    stream: Annotated[Text, Meta(description="Its name.")]
    server: Annotated[Text, Meta(description="HOST:PORT. No user or password.")] = "localhost:6379"
    database: Annotated[int, Meta(description="The number of the database.", ge=0)] = 0
    tls: Annotated[bool, Meta(description="Whether to connect over TLS.")] = False

    @property
    def address(self) -> str:
        scheme = "rediss-stream" if self.tls else "redis-stream"
        return f"{scheme}://{self.server}/{self.database}/{quote(self.stream, safe='')}"

    @property
    def place(self) -> str:
        return "stream"
