"""Subjects of JetStream as targets."""

import asyncio
import os
import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit

try:
    import nats
    from nats.errors import Error, MaxPayloadError
    from nats.js.errors import APIError, NoStreamResponseError
except ImportError as error:
    raise ImportError("NATS needs its client: pip install 'onceward[nats]'") from error

from onceward.consumers.dead_letters import KEY_HEADER
from onceward.consumers.nats_letters import ID_HEADER, fitting
from onceward.core.arguments import check_type
from onceward.core.urls import shown_url
from onceward.outbox.loop_thread import awaited
from onceward.outbox.targets import SENT_WITHIN, MessageNotSent, MessageRefused, OutboxMessage, refusal_of

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


class NatsTarget:
    """A subject of a stream. A message's key is its header ``Idempotency-Key``, and its ``Nats-Msg-Id``.

    JetStream confirms that it has stored the message. It drops a repetition itself for as long as the stream's ``duplicate_window``
    says, which is two minutes by default.

    Args:
        address: ``nats://HOST:PORT/SUBJECT``; several servers as ``HOST:PORT,HOST:PORT``.
        **connection: of ``nats.connect``, such as ``user_credentials="shop.creds"``. Register a scheme of your own to give some.

    Raises:
        ValueError: the address is not valid, or has a user.
    """

    batch = 50

    def __init__(self, address: str, **connection: Any) -> None:
        check_type("NatsTarget(address)", address, str, "nats://HOST:PORT/SUBJECT")
        parts = urlsplit(address)
        self._subject = unquote(parts.path.removeprefix("/"))
        if (
            not parts.netloc
            or "@" in parts.netloc
            or parts.query
            or parts.fragment
            or not _SUBJECT.fullmatch(self._subject)
        ):
            raise ValueError(
                f"{shown_url(address)!r} is no subject: write nats://HOST:PORT/SUBJECT, without a user or wildcards. For credentials, register "
                "a target of your own (docs/reference/outbox.md)"
            )
        servers = [f"nats://{one}" for one in parts.netloc.split(",")]
        self._connection = {"servers": servers, **_CONNECTING, **connection}
        self._client: Any = None
        self._process, self._connecting = 0, asyncio.Lock()

    def check(self, message: OutboxMessage) -> None:
        """Raise ValueError if no stream can take the message."""
        for name in ("delay", "group"):
            if getattr(message, name) is not None:
                raise ValueError(f"{self._subject}: JetStream has no {name}=; leave it out")
        for name, text in message.headers.items():
            if not _HEADER.fullmatch(name) or "\r" in text or "\n" in text:
                raise ValueError(
                    f"{name!r}: {text!r} is no header of NATS: it is one line, and its name has no space or colon"
                )

    def send(self, messages: Sequence[OutboxMessage]) -> list[Exception | None]:
        """Publish messages, and wait until the stream has them."""
        told: list[Exception | None] = [refusal_of(self, message) for message in messages]
        places = [place for place, refused in enumerate(told) if refused is None]
        answers: Sequence[Exception | None] = []
        try:
            if places:
                answers = awaited(self._publish([messages[place] for place in places]), SENT_WITHIN - 1)
        except Exception as error:  # whatever the client raises: it is sent again later
            answers = [_told(self._subject, error)] * len(places)
        for place, answer in zip(places, answers, strict=True):
            told[place] = answer
        return told

    def close(self) -> None:
        """Close the connection; the next send opens another."""
        client, self._client = self._client, None
        if client is not None:
            try:
                awaited(client.close(), _CONNECTED)
            except Exception:
                pass  # it is gone anyway

    async def _publish(self, messages: Sequence[OutboxMessage]) -> list[Exception | None]:
        jetstream = (await self._connected()).jetstream(timeout=_ANSWERED)
        return list(await asyncio.gather(*(self._sent(jetstream, message) for message in messages)))

    async def _sent(self, jetstream: Any, message: OutboxMessage) -> Exception | None:
        headers = {**message.headers, KEY_HEADER: message.key, ID_HEADER: message.key}
        body = message.body.encode()
        try:
            await jetstream.publish(self._subject, body, headers=fitting(headers, self._client.max_payload - len(body)))
        except ValueError as error:
            return MessageRefused(f"{self._subject}: the message is too large: {error}")
        except Exception as error:
            return _told(self._subject, error)
        return None

    async def _connected(self) -> Any:
        """Return the connection; all sends run in one event loop."""
        if self._process != os.getpid():  # a fork has another loop
            self._process, self._connecting, self._client = os.getpid(), asyncio.Lock(), None
        async with self._connecting:
            if self._client is None or not self._client.is_connected:
                self._client = await nats.connect(**self._connection)
            return self._client


def _told(subject: str, error: Exception) -> MessageRefused | MessageNotSent:
    if isinstance(error, NoStreamResponseError):
        told: MessageRefused | MessageNotSent = MessageNotSent(f"{subject}: no stream takes this subject; make one")
    elif isinstance(error, MaxPayloadError) or (isinstance(error, APIError) and error.err_code == _TOO_LARGE):
        told = MessageRefused(f"{subject}: the message is too large: {error}")
    else:
        kind = "" if isinstance(error, Error) else f"{type(error).__name__}: "
        told = MessageNotSent(f"{subject}: {kind}{error}")
    told.__cause__ = error
    return told
