"""Opens a ledger's servers from a URL: one, a Cluster, or what Sentinels say is the primary."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

from redis import connection, retry, sentinel
from redis.asyncio import connection as async_connection
from redis.asyncio import retry as async_retry
from redis.asyncio import sentinel as async_sentinel
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster

from onceward.stores import StoreUrl
from onceward.stores.redis.lane import AsyncRedisLane, RedisLane
from onceward.stores.redis.requests import Confirmation
from onceward.stores.redis.servers import Cluster, OneServer, Servers

Maker = Callable[[], Any]
# redis-py's modules, and what is different for coroutines: each request has a timeout around all of it. They have no types.
_BLOCKING: Final[Any] = (connection, sentinel, retry, {})
_AWAITED: Final[Any] = (async_connection, async_sentinel, async_retry, {"socket_timeout": None})
_SENTINEL: Final = 26379


def servers_at(
    place: StoreUrl, ours: Mapping[str, str], confirmation: Confirmation, most: int, timeout: float
) -> Servers:
    """Return the servers of a URL. ValueError: it is wrong.

    The protocol repeats what fails, so that redis-py must not.
    """
    options: dict[str, Any] = {"socket_timeout": timeout, "socket_connect_timeout": timeout, "protocol": 2}

    def one(make: Maker, make_async: Maker) -> OneServer:
        lane = lambda: RedisLane(make, confirmation)
        lane_async = lambda: AsyncRedisLane(make_async, confirmation, timeout)
        return OneServer(lane, lane_async, most, timeout)

    def at(url: str) -> OneServer:
        return one(partial(_pool, _BLOCKING, url, options), partial(_pool, _AWAITED, url, options))

    def node(member: Any) -> OneServer:
        host = f"[{member.host}]" if ":" in member.host else member.host
        user, at_, _ = place.netloc.rpartition("@")
        return at(place._replace(netloc=f"{user}{at_}{host}:{member.port}").geturl())

    if "sentinel" in ours:
        return one(*(_by_sentinels(modules, place, ours, options) for modules in (_BLOCKING, _AWAITED)))
    url = place.geturl()
    connection.ConnectionPool.from_url(
        url
    ).make_connection()  # which connects to nothing, and refuses an unknown option
    if "cluster" in ours:
        return Cluster(lambda: RedisCluster.from_url(url, **options), node)
    return at(url)


def _pool(modules: Any, url: str, options: dict[str, Any]) -> Any:
    connections, _, retries, own = modules
    return connections.ConnectionPool.from_url(url, **options | own, retry=retries.Retry(NoBackoff(), 0))


def _by_sentinels(modules: Any, place: StoreUrl, ours: Mapping[str, str], options: dict[str, Any]) -> Maker:
    """Return what makes a pool that asks the Sentinels for the primary, at each new connection."""
    connections, sentinels, retries, own = modules
    user, at, hosts = place.netloc.rpartition("@")
    addresses = [_address(host) for host in hosts.split(",")]
    first = place._replace(netloc=f"{user}{at}{addresses[0][0]}").geturl()
    secure = {"ssl": True} if place.scheme == "rediss" else {}
    settings = {**options, **own, **secure, **connections.parse_url(first)}
    for name in ("host", "port", "connection_class"):
        settings.pop(name, None)
    asking = {**options, **secure}
    if "sentinel_password" in ours:
        asking["password"] = ours["sentinel_password"]
    name = unquote(ours["sentinel"])

    def make() -> Any:
        sentinel = sentinels.Sentinel(addresses, sentinel_kwargs=asking)
        return sentinels.SentinelConnectionPool(name, sentinel, **settings, retry=retries.Retry(NoBackoff(), 0))

    return make


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or port.endswith("]"):
        return text.strip("[]"), _SENTINEL
    try:
        return host.strip("[]"), int(port)
    except ValueError:
        raise ValueError(f"{text!r} is not a host and port of a Sentinel") from None
