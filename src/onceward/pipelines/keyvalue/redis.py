"""Values in Redis or Valkey: ``redis://host:6379/0``. A value is a text of JSON, a set is a set of them."""

from typing import Any

import msgspec
import redis
from redis.exceptions import ResponseError

from onceward.core.urls import encoded_url
from onceward.pipelines.keyvalue import ENCODER, Values, options_of


class RedisValues(Values):
    """Keys are ``SPACE:KEY``. Redis itself expires them."""

    def __init__(self, url: str, space: str, folder: str) -> None:
        options_of(url, frozenset())
        self._space = f"{space}:" if space else ""
        self._client = redis.Redis.from_url(encoded_url(url), socket_timeout=10, socket_connect_timeout=10)

    def get(self, key: str) -> Any:
        """Return a value, or the members of a set."""
        name = self._space + key
        try:
            text: Any = self._client.get(name)
        except ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            members: Any = self._client.smembers(name)
            return [msgspec.json.decode(one) for one in sorted(members)]
        return None if text is None else msgspec.json.decode(text)

    def set(self, key: str, value: Any, ttl: float | None) -> None:
        """Set a value."""
        self._client.set(self._space + key, ENCODER.encode(value), px=None if ttl is None else _milliseconds(ttl))

    def add(self, key: str, member: Any, ttl: float | None) -> None:
        """Add to a set."""
        name = self._space + key
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.sadd(name, ENCODER.encode(member))
            if ttl is not None:
                pipeline.pexpire(name, _milliseconds(ttl))
            pipeline.execute()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _milliseconds(ttl: float) -> int:
    return max(1, round(ttl * 1000))
