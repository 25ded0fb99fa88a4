"""Retry queues of RabbitMQ: a few lengths, from which messages go back by themselves.

A retry queue is a quorum queue without consumers. A message in it expires and is dead-lettered back to its own queue, at least
once. RabbitMQ expires messages at the head of a queue only, so one that waits long would hold back those behind it. Each queue is
therefore for pauses up to four times as long as those of the queue before, and a message waits at most as long as its queue says.
"""

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import takewhile
from typing import Any, Final, NamedTuple

from aio_pika import DeliveryMode, Message

from onceward.consumers.dead_letters import RECEIVES, receives_in, retry_name

_FACTOR: Final = 4
NO_ID: Final = "onceward-none-"  # begins the id of a copy whose original has none
# CC would send copies elsewhere, and x-death can make RabbitMQ drop a message as one that goes in circles.
_BROKERS: Final = re.compile(r"CC|BCC|x-death|x-(?:first|last)-death-.*|x-(?:delivery|acquired)-count")


def headers_for_copy(headers: Mapping[str, Any], without: Collection[str] = ()) -> dict[str, Any]:
    """Return a message's headers for a copy: without RabbitMQ's own ones, and those ``without``, in capitals or not."""
    return {
        name: _encodable(value)
        for name, value in headers.items()
        if not (_BROKERS.fullmatch(name) or name.lower() in without)
    }


def copy_of(
    message: Any,
    headers: Mapping[str, str],
    seconds: float | None = None,
    without: Collection[str] = (),
) -> Message:
    """Return a persistent copy of a message with these headers besides its own; it expires in ``seconds``.

    Headers ``without`` are left out, and the sender's user id: the broker accepts only our own. A copy whose original has no id gets
    one that says so, because aio-pika would invent one.
    """
    return Message(
        message.body,
        headers={**headers_for_copy(message.headers, without), **headers},
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        delivery_mode=DeliveryMode.PERSISTENT,
        priority=message.priority,
        correlation_id=message.correlation_id,
        reply_to=message.reply_to,
        expiration=seconds,
        message_id=message.message_id or NO_ID + os.urandom(16).hex(),
        timestamp=message.timestamp,
        type=message.type,
        app_id=message.app_id,
    )


def _encodable(value: Any) -> Any:
    """Return a header's value as the client can send it: text that is not UTF-8 comes as bytes, and leaves as a byte array."""
    if isinstance(value, bytes):
        return bytearray(value)
    if isinstance(value, dict):
        return {name: _encodable(one) for name, one in value.items()}
    return [_encodable(one) for one in value] if isinstance(value, list) else value


def header_of(headers: Mapping[str, Any], name: str) -> str | None:
    """Return a header as text; capitals do not count."""
    header = headers.get(name)
    if header is None:
        header = next((value for key, value in headers.items() if key.lower() == name.lower()), None)
    if isinstance(header, bytes):
        return header.decode(errors="backslashreplace")
    return None if header is None or isinstance(header, dict | list) else str(header)


def receives_of(message: Any) -> int:
    """Return how often a message was received, including this time and the times before its retries."""
    before = receives_in(header_of(message.headers, RECEIVES))
    returned = message.headers.get("x-delivery-count")  # of quorum queues; classic ones only tell that it came before
    again = returned if isinstance(returned, int) else int(bool(message.redelivered))
    return before + again + 1


class InTurn:
    """Lets one message of each id be under way: aio-pika finds a message that the broker returns by its id."""

    def __init__(self) -> None:
        self._sending: dict[str, asyncio.Future[None]] = {}

    @asynccontextmanager
    async def of(self, name: str) -> AsyncGenerator[None, None]:
        """Wait until no other message of this id is under way."""
        while (other := self._sending.get(name)) is not None:
            await asyncio.wait((other,))
        mine = self._sending[name] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._sending[name]
            mine.set_result(None)


def lengths(longest: float) -> list[int]:
    """Return the seconds of the retry queues for pauses up to ``longest`` seconds, as 1, 4, 16, 64, 256, 900."""
    shorter = takewhile(lambda seconds: seconds < longest, (_FACTOR**n for n in range(20)))
    return [*shorter, max(1, round(longest))]


def length_for(seconds: float, lengths: list[int]) -> int:
    """Return the length of the queue for a pause, one of those that are known."""
    return next((length for length in lengths if length >= seconds), lengths[-1])


def retry_queue(queue: str, length: int) -> str:
    """Return the name of a retry queue."""
    return f"{retry_name(queue)}.{length}s"


def retry_arguments(queue: str, length: int) -> dict[str, str | int]:
    """Return the arguments of a retry queue."""
    return {
        "x-queue-type": "quorum",
        "x-message-ttl": length * 1000,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": queue,
        # RabbitMQ 3.10: expired messages stay until the other queue has confirmed them. It needs reject-publish.
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }


def dead_arguments(version: tuple[int, ...]) -> dict[str, Any]:
    """Return the arguments of a dead-letter queue that is declared; ``version`` is the server's.

    RabbitMQ 4 by default drops what came back 20 times, as a letter does that people look at.
    """
    return {"x-queue-type": "quorum"} if version < (4,) else {"x-queue-type": "quorum", "x-delivery-limit": -1}


def version_of(connection: Any) -> tuple[int, ...]:
    """Return the version of the server of a connection of aio-pika, such as (3, 10); empty if it does not say."""
    properties = getattr(getattr(connection.transport, "connection", None), "server_properties", {})
    return tuple(int(part) for part in re.findall(r"\d+", str(properties.get("version", "")))[:2])


class QueueArguments(NamedTuple):
    """What a queue was declared with.

    Attributes:
        durable: whether it survives a restart.
        auto_delete: whether it is deleted with its last consumer.
        arguments: such as ``x-message-ttl``; None if this user may not declare the queue, which they are read by.
    """

    durable: bool
    auto_delete: bool
    arguments: Mapping[str, object] | None

    @property
    def kind(self) -> str:
        """Quorum, classic or stream."""
        kind = (self.arguments or {}).get("x-queue-type", "classic")
        return str(getattr(kind, "value", kind))

    @property
    def dead_letters(self) -> bool:
        """Whether what the queue drops goes to an exchange."""
        return "x-dead-letter-exchange" in (self.arguments or {})

    def losses(self) -> Iterator[str]:
        """Yield each setting that loses messages, and its fix."""
        arguments = self.arguments or {}
        if not self.durable:
            yield "it is not durable, so a restart deletes it with its messages: declare it with durable=True"
        if self.auto_delete:
            yield "it is deleted with its last consumer (auto-delete, exclusive): declare it without that"
        if "x-expires" in arguments:
            yield "it is deleted when it is not used (x-expires): declare it without x-expires"
        if self.kind == "stream":
            yield "it is a stream, from which nothing is removed: use a quorum queue"
        if self.dead_letters:
            return
        if "x-message-ttl" in arguments:
            yield (
                "it drops messages that wait too long (x-message-ttl): "
                "give it a dead-letter exchange, or no x-message-ttl"
            )
        if (
            not {"x-max-length", "x-max-length-bytes"}.isdisjoint(arguments)
            and arguments.get("x-overflow", "drop-head") == "drop-head"
        ):
            yield "it drops its oldest messages when it is full (x-max-length): set x-overflow to reject-publish"
        if int(str(arguments.get("x-delivery-limit", -1))) >= 0:
            yield (
                "it drops messages that come back too often (x-delivery-limit), as they do when workers are killed: "
                "give it a dead-letter exchange, or x-delivery-limit -1"
            )

    def risks(self, version: tuple[int, ...]) -> Iterator[str]:
        """Yield what can lose messages, but does not have to."""
        if self.arguments is None:
            yield (
                "this user may not declare it, so its settings cannot be read: nobody checks whether it drops messages. Permit "
                "`configure` on it, or look yourself (docs/reference/brokers.md)"
            )
            return
        if self.kind == "classic":
            yield "it is a classic queue, which one node holds: a lost node loses its messages. Use a quorum queue"
        elif version >= (4,) and "x-delivery-limit" not in self.arguments and not self.dead_letters:
            yield (
                "RabbitMQ 4 drops messages that came back 20 times, unless a policy says otherwise. Each killed worker brings one "
                "back. Declare the queue with x-delivery-limit -1, or with a dead-letter exchange"
            )
