"""Opens redis-py's clients from a URL: of one server, of a Cluster, or of what Sentinels say is the primary."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

import redis
import redis.asyncio
from redis.asyncio.cluster import RedisCluster as AsyncCluster
from redis.asyncio.connection import ConnectionPool as AsyncPool
from redis.asyncio.connection import parse_url as parse_url_async
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as _AsyncSentinel
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.connection import ConnectionPool
from redis.connection import parse_url as _parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel as _Sentinel

from onceward.stores import StoreUrl

# redis-py has no types for these
parse_url: Any = _parse_url
Sentinel: Any = _Sentinel
AsyncSentinel: Any = _AsyncSentinel
Maker = Callable[[], Any]
_SENTINEL: Final = 26379


def makers(place: StoreUrl, ours: Mapping[str, str], timeout: float) -> tuple[Maker, Maker]:
    """Return what makes a blocking client, and one for coroutines. ValueError: the URL is wrong.

    The protocol repeats what fails, so that redis-py must not.
    """
    url = place.geturl()
    options: dict[str, Any] = {"socket_timeout": timeout, "socket_connect_timeout": timeout, "protocol": 2}
    if "sentinel" in ours:
        return _by_sentinels(place, ours, options)
    ConnectionPool.from_url(url).make_connection()  # which connects to nothing, and refuses an unknown option
    awaited = options | {"socket_timeout": None}  # each request has a timeout around all of it
    if "cluster" in ours:
        return (
            lambda: RedisCluster.from_url(url, **options),
            lambda: AsyncCluster.from_url(url, **options),
        )
    return (
        lambda: redis.Redis.from_pool(ConnectionPool.from_url(url, **options, retry=Retry(NoBackoff(), 0))),
        lambda: redis.asyncio.Redis.from_pool(AsyncPool.from_url(url, **awaited, retry=AsyncRetry(NoBackoff(), 0))),
    )


def _by_sentinels(place: StoreUrl, ours: Mapping[str, str], options: dict[str, Any]) -> tuple[Maker, Maker]:
    """Return the makers of clients that ask the Sentinels for the primary, at each new connection."""
    user, _, hosts = place.netloc.rpartition("@")
    sentinels = [_address(host) for host in hosts.split(",")]
    first = place._replace(netloc=f"{user}{'@' if user else ''}{sentinels[0][0]}").geturl()
    given = {
        name: value for name, value in parse_url(first).items() if name not in {"host", "port", "connection_class"}
    }
    given_async = {
        name: value
        for name, value in parse_url_async(first).items()
        if name not in {"host", "port", "connection_class"}
    }
    secure = {"ssl": True} if place.scheme == "rediss" else {}
    asking = {**options, **secure}
    if "sentinel_password" in ours:
        asking["password"] = ours["sentinel_password"]
    name = unquote(ours["sentinel"])

    def make() -> Any:
        sentinel = Sentinel(sentinels, sentinel_kwargs=asking)
        return sentinel.master_for(name, **(options | secure | given), retry=Retry(NoBackoff(), 0))

    def make_async() -> Any:
        asyncio.get_running_loop()
        sentinel = AsyncSentinel(sentinels, sentinel_kwargs=asking)
        return sentinel.master_for(
            name, **(options | {"socket_timeout": None} | secure | given_async), retry=AsyncRetry(NoBackoff(), 0)
        )

    return make, make_async


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or port.endswith("]"):
        return text.strip("[]"), _SENTINEL
    try:
        return host.strip("[]"), int(port)
    except ValueError:
        raise ValueError(f"{text!r} is no host and port of a Sentinel") from None
