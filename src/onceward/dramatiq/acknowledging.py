"""RabbitMQ: a message is acknowledged on the connection that it came from, or not at all.

RabbitMQ numbers the messages of each connection from 1. After a reconnection, Dramatiq acknowledges a message of the old connection by
its number on the new one, and so removes another message, which may not have run. If its worker ends then, that message is lost.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dramatiq.broker import Consumer

from onceward.observe.logs import logger

if TYPE_CHECKING:
    from dramatiq import Broker
    from dramatiq.broker import MessageProxy


def acknowledge_own(broker: "Broker") -> None:
    """Let the consumers of a broker acknowledge only their own messages."""
    consume = broker.consume
    if isinstance(consume, _Consume):
        return
    broker.consume = _Consume(broker)  # type: ignore[method-assign]  # Dramatiq asks only a broker's class for another consumer


class _Consume:
    """A broker's ``consume``."""

    def __init__(self, broker: "Broker") -> None:
        self._consume = broker.consume

    def __call__(self, queue_name: str, prefetch: int = 1, timeout: int = 30000) -> Consumer:
        return _OwnMessages(self._consume(queue_name, prefetch, timeout))


class _OwnMessages(Consumer):
    """A consumer of one connection. RabbitMQ itself delivers the messages of an ended one again."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def __next__(self) -> "MessageProxy | None":
        message: MessageProxy | None = next(self._consumer)
        if message is not None:
            message.onceward_consumer = self  # type: ignore[attr-defined]
        return message

    def ack(self, message: "MessageProxy") -> None:
        """Acknowledge a message."""
        if self._has(message):
            self._consumer.ack(message)

    def nack(self, message: "MessageProxy") -> None:
        """Send a message to the dead letters."""
        if self._has(message):
            self._consumer.nack(message)

    def requeue(self, messages: "Iterable[MessageProxy]") -> None:
        """Give messages back."""
        self._consumer.requeue(messages)

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def _has(self, message: "MessageProxy") -> bool:
        ours = message.onceward_consumer is self
        if not ours:
            logger().info("%s comes again, because its connection was lost", message.message_id)
        return ours
