"""Queues and exchanges of RabbitMQ as targets of the outbox."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from aio_pika import DeliveryMode, Message

from onceward.consumers.broker import BrokerError
from onceward.consumers.dead_letters import KEY_HEADER
from onceward.core.urls import shown_url
from onceward.outbox.loop_thread import awaited
from onceward.outbox.targets import SENT_WITHIN, MessageNotSent, OutboxMessage, refusal_of
from onceward.rabbitmq.connection import TROUBLE, Publisher, closed, connect, read_address, refused

if TYPE_CHECKING:
    from aio_pika.abc import AbstractConnection

_ROUTES = frozenset({"CC", "BCC"})  # lists of routing keys: as text, they end the channel, and with it a whole batch
_LONGEST_NAME = 255  # bytes of a queue, an exchange, a routing key or a header's name (AMQP 0-9-1, shortstr)


class RabbitTarget:
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
        self._loop: asyncio.AbstractEventLoop | None = None  # of the connection; another one after a fork
        self._opening = asyncio.Lock()
        self._connection: AbstractConnection | None = None
        self._publisher: Publisher | None = None

    def check(self, message: OutboxMessage) -> None:
        """Raise ValueError if RabbitMQ can never take the message."""
        for name in ("delay", "group"):
            if getattr(message, name) is not None:
                raise ValueError(f"{self._place.shown}: RabbitMQ has no {name}=; leave it out")
        for name in message.headers:
            if name.lower() == KEY_HEADER.lower():
                raise ValueError(f"headers: onceward itself writes {KEY_HEADER}; leave it out")
            if name in _ROUTES:
                raise ValueError(f"headers: RabbitMQ itself reads {name}, as a list of queues; give yours another name")
            if len(name.encode()) > _LONGEST_NAME:
                raise ValueError(f"headers: a name has up to {_LONGEST_NAME} bytes, and {name[:20]}... has more")
        message.body.encode()

    def send(self, messages: Sequence[OutboxMessage]) -> list[Exception | None]:
        """Publish messages together, and wait for their confirms."""
        told: list[Exception | None] = [refusal_of(self, message) for message in messages]
        fit = [number for number, error in enumerate(told) if error is None]
        answers: list[Exception | None]
        try:
            answers = awaited(self._send([messages[number] for number in fit]), SENT_WITHIN)
        except Exception as error:  # no confirm in time, or the interpreter ends
            answers = [error] * len(fit)
        for number, answer in zip(fit, answers, strict=True):
            if answer is not None:
                told[number] = MessageNotSent(f"{self._place.shown}: {str(answer) or 'no confirm came in time'}")
        return told

    def close(self) -> None:
        """Close the connection; the next send opens another."""
        if self._connection is not None:
            awaited(self._close(), SENT_WITHIN)

    async def _send(self, messages: Sequence[OutboxMessage]) -> list[Exception | None]:
        try:
            publisher = await self._open()
        except BrokerError as error:
            return [error] * len(messages)
        return await asyncio.gather(*(self._publish(publisher, message) for message in messages))

    async def _publish(self, publisher: Publisher, message: OutboxMessage) -> Exception | None:
        try:
            await publisher.send(_written(message), self._place.key, self._place.exchange)
        except BrokerError as error:
            return error
        return None

    async def _open(self) -> Publisher:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._opening, self._connection, self._publisher = loop, asyncio.Lock(), None, None
        async with self._opening:
            if self._connection is None or self._connection.is_closed:
                self._connection, self._publisher = await connect(self._place.url), None
            if self._publisher is None or self._publisher.closed:
                try:
                    self._publisher = await Publisher.on(self._connection)
                except TROUBLE as error:
                    raise refused("a channel", error) from error
            return self._publisher

    async def _close(self) -> None:
        connection, self._connection, self._publisher = self._connection, None, None
        if connection is not None and self._loop is asyncio.get_running_loop():
            await closed(connection)


def _written(message: OutboxMessage) -> Message:
    content = message.body.encode()
    return Message(
        content,
        headers={**message.headers, KEY_HEADER: message.key},
        content_type="application/json" if _is_json(content) else "text/plain",
        delivery_mode=DeliveryMode.PERSISTENT,
        message_id=message.key,
    )


def _is_json(content: bytes) -> bool:
    try:
        msgspec.json.decode(content, type=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    return True
