"""Values in Redis or Valkey: ``redis://host:6379/0``. A value is a text of JSON."""

from typing import Any

import msgspec
import redis

from onceward.core.urls import encoded_url
from onceward.pipelines.keyvalue import Values, options_of


class RedisValues(Values):
    """Keys are ``SPACE:KEY``. Redis itself expires them."""

    def __init__(self, url: str, space: str, folder: str) -> None:
        options_of(url, frozenset())
        self._space = f"{space}:" if space else ""
        self._client = redis.Redis.from_url(encoded_url(url), socket_timeout=10, socket_connect_timeout=10)

    def get(self, key: str) -> Any:
        """Return a value."""
        text: Any = self._client.get(self._space + key)
        return None if text is None else msgspec.json.decode(text)

    def set(self, key: str, value: Any, ttl: float | None) -> None:
        """Set a value."""
        milliseconds = None if ttl is None else max(1, round(ttl * 1000))
        self._client.set(self._space + key, msgspec.json.encode(value), px=milliseconds)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
