"""Redis Streams as targets."""

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.exceptions import RedisError
    from redis.retry import Retry
except ImportError as error:
    raise ImportError("Redis needs its client: pip install 'onceward[redis]'") from error

from onceward.consumers.dead_letters import KEY_HEADER
from onceward.core.arguments import check_type
from onceward.core.urls import shown_url
from onceward.outbox.targets import MessageNotSent, OutboxMessage, refusal_of

_TIMEOUT: Final = 2.5  # seconds for a connection, and for an answer


class RedisStreamTarget:
    """A stream. A message is an entry with the field ``__data__``, as FastStream reads it: JSON with its ``data`` and ``headers``.

    Its key is the header ``Idempotency-Key``. Redis drops no repetition itself before version 8.6, and this target does not ask for
    that. So the consumer must look at the key.

    Args:
        address: ``redis-stream://HOST:PORT/DATABASE/STREAM``, or ``rediss-stream://`` over TLS.
        **connection: of ``redis.Redis``, such as ``password=``. Register a scheme of your own to give some.

    Raises:
        ValueError: the address is not valid, or has a user.
    """

    batch = 50

    def __init__(self, address: str, **connection: Any) -> None:
        check_type("RedisStreamTarget(address)", address, str, "redis-stream://HOST:PORT/DATABASE/STREAM")
        parts = urlsplit(address)
        number, _, name = parts.path.removeprefix("/").partition("/")
        self._stream = unquote(name)
        if not (parts.hostname and number.isdecimal() and name) or "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError(
                f"{shown_url(address)!r} is no stream: write redis-stream://HOST:PORT/DATABASE/STREAM, without a user. For a password, "
                "register a target of your own (docs/reference/outbox.md)"
            )
        given = {
            "host": parts.hostname,
            "port": parts.port or 6379,
            "db": int(number),
            "ssl": parts.scheme.startswith("rediss"),
        }
        waits = {"socket_timeout": _TIMEOUT, "socket_connect_timeout": _TIMEOUT, "retry": Retry(NoBackoff(), 0)}
        self._client = redis.Redis(**{**given, **waits, **connection})

    def check(self, message: OutboxMessage) -> None:
        """Raise ValueError if no stream can take the message."""
        for name in ("delay", "group"):
            if getattr(message, name) is not None:
                raise ValueError(f"{self._stream}: a stream of Redis has no {name}=; leave it out")

    def send(self, messages: Sequence[OutboxMessage]) -> list[Exception | None]:
        """Add messages, all with one request."""
        told: list[Exception | None] = [refusal_of(self, message) for message in messages]
        places = [place for place, refused in enumerate(told) if refused is None]
        answers: list[object]
        try:
            with self._client.pipeline(transaction=False) as pipeline:
                for place in places:
                    headers = {**messages[place].headers, KEY_HEADER: messages[place].key}
                    content = msgspec.json.encode({"data": messages[place].body, "headers": headers})
                    pipeline.xadd(self._stream, {"__data__": content})
                answers = pipeline.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            answers = [error] * len(places)
        for place, answer in zip(places, answers, strict=True):
            if isinstance(answer, Exception):
                told[place] = not_sent = MessageNotSent(f"{self._stream}: {answer}")
                not_sent.__cause__ = answer
        return told

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()
