"""Redis Streams as targets."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from onceward.consumers.dead_letters import KEY_HEADER
from onceward.core.urls import has_login, shown_url
from onceward.outbox.targets import OutboxMessage, answers_of, not_sent, refuse_options

_TIMEOUT: Final = 2.5  # seconds for a connection, and for an answer


class RedisStreamTarget:
    """A stream. A message is an entry with the field ``__data__``, as FastStream reads it: JSON with its ``data`` and ``headers``.

    Its key is the header ``Idempotency-Key``. This target does not ask Redis to drop repetitions, so the consumer must
    look at the key.

    Args:
        address: ``redis-stream://HOST:PORT/DATABASE/STREAM``, or ``rediss-stream://`` over TLS.
        **connection: options of ``redis.Redis``, such as ``password=``. To give some, register a scheme of your own.

    Raises:
        ValueError: the address is not valid, or has a user.
    """

    batch = 50

    def __init__(self, address: str, **connection: Any) -> None:
        login = has_login(address)  # first: what urlsplit raises can quote a password
        parts = urlsplit(address)
        number, _, name = parts.path.removeprefix("/").partition("/")
        self._stream = unquote(name)
        if not (parts.hostname and number.isdecimal() and name) or login or parts.query or parts.fragment:
            raise ValueError(
                f"{shown_url(address)!r} is not a stream: write redis-stream://HOST:PORT/DATABASE/STREAM, without a "
                "user. For a password, register a target of your own (docs/reference/outbox.md)"
            )
        options = {
            "host": parts.hostname,
            "port": parts.port or 6379,
            "db": int(number),
            "ssl": parts.scheme.startswith("rediss"),
        }
        waits = {"socket_timeout": _TIMEOUT, "socket_connect_timeout": _TIMEOUT, "retry": Retry(NoBackoff(), 0)}
        self._client = redis.Redis(**{**options, **waits, **connection})

    def check(self, message: OutboxMessage) -> None:
        """Raise ValueError if no stream can take the message."""
        refuse_options(f"{self._stream}: a stream of Redis", message, "delay", "group")

    def send(self, messages: Sequence[OutboxMessage]) -> list[Exception | None]:
        """Add messages, all with one request."""
        return answers_of(self, messages, self._send, partial(not_sent, self._stream))

    def _send(self, messages: Sequence[OutboxMessage]) -> list[Exception | None]:
        with self._client.pipeline(transaction=False) as pipeline:
            for message in messages:
                headers = {**message.headers, KEY_HEADER: message.key}
                pipeline.xadd(
                    self._stream, {"__data__": msgspec.json.encode({"data": message.body, "headers": headers})}
                )
            answers = pipeline.execute(raise_on_error=False)
        return [answer if isinstance(answer, Exception) else None for answer in answers]

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()
