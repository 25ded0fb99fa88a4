"""Subjects of JetStream as targets."""

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import nats
from nats.errors import MaxPayloadError
from nats.js.errors import APIError, NoStreamResponseError

from onceward.consumers.dead_letters import KEY_HEADER
from onceward.consumers.nats_streams import ID_HEADER, fitting
from onceward.core.urls import has_login, shown_url
from onceward.outbox.loop_thread import LoopTarget
from onceward.outbox.targets import MessageNotSent, MessageRefused, OutboxMessage, refuse_options

_SUBJECT: Final = re.compile(r"[^\s.*>]+(?:\.[^\s.*>]+)*")
_HEADER: Final = re.compile(r"[!-9;-~]+")  # visible, without the colon
_CONNECTED: Final = 3.0  # seconds
_ANSWERED: Final = 5.0  # seconds; with the above less than SENT_WITHIN
_TOO_LARGE: Final = 10054  # JetStream's error code for a message over the stream's max_msg_size


async def _quiet(_: Exception) -> None:
    """The answer of a send tells what went wrong."""


# The next send connects again, so that a send ends in time.
_CONNECTING: Final = {
    "connect_timeout": _CONNECTED,
    "allow_reconnect": False,
    "max_reconnect_attempts": 1,
    "reconnect_time_wait": 0.2,
    "error_cb": _quiet,
}


class NatsTarget(LoopTarget[Any]):
    """A subject of a stream. A message's key is its header ``Idempotency-Key``, and its ``Nats-Msg-Id``.

    JetStream confirms that it has stored the message. Within the stream's ``duplicate_window`` (two minutes by default)
    JetStream drops repetitions itself.

    Args:
        address: ``nats://HOST:PORT/SUBJECT``; several servers as ``HOST:PORT,HOST:PORT``.
        **connection: options of ``nats.connect``, such as ``user_credentials="shop.creds"``. To give some, register a
            scheme of your own.

    Raises:
        ValueError: the address is not valid, or has a user.
    """

    batch = 50
    _refused = (MaxPayloadError,)

    def __init__(self, address: str, **connection: Any) -> None:
        login = has_login(address)  # first: what urlsplit raises can quote a password
        parts = urlsplit(address)
        super().__init__(unquote(parts.path.removeprefix("/")))
        if not parts.netloc or login or parts.query or parts.fragment or not _SUBJECT.fullmatch(self._where):
            raise ValueError(
                f"{shown_url(address)!r} is not a subject: write nats://HOST:PORT/SUBJECT, without a user or "
                "wildcards. For credentials, register a target of your own (docs/reference/outbox.md)"
            )
        servers = [f"nats://{one}" for one in parts.netloc.split(",")]
        self._connection = {"servers": servers, **_CONNECTING, **connection}

    def check(self, message: OutboxMessage) -> None:
        """Raise ValueError if no stream can take the message."""
        refuse_options(f"{self._where}: JetStream", message, "delay", "group")
        for name, text in message.headers.items():
            if not _HEADER.fullmatch(name) or "\r" in text or "\n" in text:
                raise ValueError(
                    f"the header {name!r}: NATS cannot carry it: give one line, and a name without spaces and colons"
                )

    async def _connect(self) -> Any:
        """Return a connection."""
        return await nats.connect(**self._connection)

    async def _disconnect(self, client: Any) -> None:
        """Close a connection."""
        await client.close()

    def _is_closed(self, client: Any) -> bool:
        """Return whether a connection is lost."""
        return not client.is_connected

    async def _deliver(self, client: Any, messages: Sequence[OutboxMessage]) -> Sequence[Exception | None]:
        """Publish messages, and wait until the stream has them."""
        return await asyncio.gather(*(self._sent(client, message) for message in messages))

    async def _sent(self, client: Any, message: OutboxMessage) -> Exception | None:
        headers = {**message.headers, KEY_HEADER: message.key, ID_HEADER: message.key}
        try:
            body = message.body.encode()
            headers = fitting(headers, client.max_payload - len(body))
        except ValueError as error:
            return MessageRefused(f"{self._where}: {error}")
        try:
            await client.jetstream(timeout=_ANSWERED).publish(self._where, body, headers=headers)
        except NoStreamResponseError:
            return MessageNotSent(f"{self._where}: no stream takes this subject; make one")
        except APIError as error:
            return MessageRefused(f"{self._where}: {error}") if error.err_code == _TOO_LARGE else error
        except Exception as error:
            return error
        return None
