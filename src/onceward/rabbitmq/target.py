"""Queues and exchanges of RabbitMQ as targets of the outbox."""

import asyncio
from collections.abc import Sequence

from aio_pika import DeliveryMode, Message

from onceward.consumers.dead_letters import KEY_HEADER
from onceward.core.urls import shown_url
from onceward.outbox.loop_thread import LoopTarget
from onceward.outbox.targets import OutboxMessage, is_json, refuse_options
from onceward.rabbitmq.connection import Publisher, read_address

_ROUTES = frozenset({"CC", "BCC"})  # lists of routing keys: as text, they end the channel, and with it a whole batch
_LONGEST_NAME = 255  # bytes of a queue, an exchange, a routing key or a header's name (AMQP 0-9-1, shortstr)


class RabbitTarget(LoopTarget[Publisher]):
    """A queue or an exchange. A message's key is its header ``Idempotency-Key`` and its message id.

    A message is sent when the broker has confirmed it. One that no queue takes is not sent, and is tried again later.

    Args:
        address: ``amqp:QUEUE`` at the broker of AMQP_URL; or ``amqp://HOST/VHOST?queue=QUEUE``, or with
            ``?exchange=EXCHANGE&key=ROUTING_KEY``; ``amqps:`` is TLS. User and password come from AMQP_URL.

    Raises:
        ValueError: the address is not valid.
    """

    batch = 100

    def __init__(self, address: str) -> None:
        self._place = read_address(address)
        if max(len(text.encode()) for text in (self._place.exchange, self._place.key)) > _LONGEST_NAME:
            raise ValueError(f"{shown_url(address)!r}: RabbitMQ's names have up to {_LONGEST_NAME} bytes")
        super().__init__(self._place.shown)

    def check(self, message: OutboxMessage) -> None:
        """Raise ValueError if RabbitMQ can never take the message."""
        refuse_options(f"{self._where}: RabbitMQ", message, "delay", "group")
        for name in message.headers:
            if name.lower() == KEY_HEADER.lower():
                raise ValueError(f"headers: onceward itself writes {KEY_HEADER}; leave it out")
            if name in _ROUTES:
                raise ValueError(f"headers: RabbitMQ itself reads {name}, as a list of queues; give yours another name")
            if len(name.encode()) > _LONGEST_NAME:
                raise ValueError(f"headers: a name has up to {_LONGEST_NAME} bytes, and {name[:20]}... has more")
        message.body.encode()

    async def _connect(self) -> Publisher:
        """Return a publisher with a connection of its own."""
        return await Publisher.to(self._place.url)

    async def _disconnect(self, client: Publisher) -> None:
        """Close its connection."""
        await client.close()

    def _is_closed(self, client: Publisher) -> bool:
        """Return whether its channel is closed, as by a missing exchange."""
        return client.closed

    async def _deliver(self, client: Publisher, messages: Sequence[OutboxMessage]) -> Sequence[Exception | None]:
        """Publish messages together, and wait for their confirms."""
        place = self._place
        sends = (client.send(_amqp_message(message), place.key, place.exchange) for message in messages)
        return await asyncio.gather(*sends, return_exceptions=True)  # type: ignore[return-value]  # an interrupt is raised


def _amqp_message(message: OutboxMessage) -> Message:
    content = message.body.encode()
    return Message(
        content,
        headers={**message.headers, KEY_HEADER: message.key},
        content_type="application/json" if is_json(content) else "text/plain",
        delivery_mode=DeliveryMode.PERSISTENT,
        message_id=message.key,
    )
