"""Opens a ledger's servers from a URL: one, a Cluster, or what Sentinels say is the primary; or on a client of the caller's."""

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

from redis import exceptions
from redis.asyncio.connection import ConnectionPool as AsyncPool
from redis.asyncio.connection import parse_url as parse_url_async
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as _AsyncSentinel
from redis.asyncio.sentinel import SentinelConnectionPool as _AsyncSentinelPool
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.connection import ConnectionPool
from redis.connection import parse_url as _parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel as _Sentinel
from redis.sentinel import SentinelConnectionPool as _SentinelPool

from onceward.stores import StoreUrl
from onceward.stores.redis.cluster import AsyncCluster, Cluster
from onceward.stores.redis.confirmation import Confirmation
from onceward.stores.redis.lane import AsyncGuestLane, AsyncRedisLane, GuestLane, RedisLane
from onceward.stores.redis.servers import InThreads, OneServer, OnItsLoop, Servers

# redis-py has no types for these
parse_url: Any = _parse_url
Sentinel: Any = _Sentinel
AsyncSentinel: Any = _AsyncSentinel
SentinelPool: Any = _SentinelPool
AsyncSentinelPool: Any = _AsyncSentinelPool
Maker = Callable[[], Any]
_SENTINEL: Final = 26379


def servers_at(
    place: StoreUrl, ours: Mapping[str, str], confirmation: Confirmation, most: int, timeout: float
) -> Servers:
    """Return the servers of a URL. ValueError: it is wrong.

    The protocol repeats what fails, so that redis-py must not.

    Args:
        place: the URL, with redis-py's options only.
        ours: the other options.
        confirmation: what a write must have before it counts.
        most: lanes to a server.
        timeout: seconds for one request.
    """
    options: dict[str, Any] = {"socket_timeout": timeout, "socket_connect_timeout": timeout, "protocol": 2}

    def one(make: Maker, make_async: Maker) -> OneServer:
        lane = lambda: RedisLane(make, confirmation)
        lane_async = lambda: AsyncRedisLane(make_async, confirmation, timeout)
        return OneServer(lane, lane_async, most, confirmation, timeout)

    def node(client: Any, name: str) -> OneServer:
        found = _node(client, name)
        host = f"[{found.host}]" if ":" in found.host else found.host
        user, at, _ = place.netloc.rpartition("@")
        return one(*_pools(place._replace(netloc=f"{user}{at}{host}:{found.port}").geturl(), options))

    if "sentinel" in ours:
        return one(*_by_sentinels(place, ours, options))
    url = place.geturl()
    ConnectionPool.from_url(url).make_connection()  # which connects to nothing, and refuses an unknown option
    if "cluster" in ours:
        return Cluster(lambda: RedisCluster.from_url(url, **options), node, confirmation, timeout)
    return one(*_pools(url, options))


def servers_of(client: Any, confirmation: Confirmation, most: int, timeout: float, *, is_async: bool) -> Servers:
    """Return the servers of a client of the caller's. All but the client as for :func:`servers_at`."""

    def one(pool: Maker) -> OneServer:
        lane, lane_async = lambda: GuestLane(pool, confirmation), lambda: AsyncGuestLane(pool, confirmation)
        return OneServer(lane, lane_async, most, confirmation, timeout)

    def node(client: Any, name: str) -> OneServer:
        return one(
            lambda: _NodePool(_node(client, name)) if is_async else _node(client, name).redis_connection.connection_pool
        )

    servers: Servers
    if hasattr(client, "connection_pool"):
        servers = one(lambda: client.connection_pool)
    else:
        servers = (AsyncCluster if is_async else Cluster)(lambda: client, node, confirmation, timeout)
    return OnItsLoop(servers) if is_async else InThreads(servers)


class _NodePool:
    """A node of a Cluster of ``redis.asyncio``, which is its own pool."""

    def __init__(self, node: Any) -> None:
        self._node = node

    async def get_connection(self) -> Any:
        return self._node.acquire_connection()

    async def release(self, connection: Any) -> None:
        self._node.release(connection)


def _node(client: Any, name: str) -> Any:
    if (found := client.get_node(node_name=name)) is None:
        raise exceptions.ConnectionError(f"{name} has left the Cluster")
    return found


def _pools(url: str, options: dict[str, Any]) -> tuple[Maker, Maker]:
    """Return the makers of pools."""
    awaited = options | {"socket_timeout": None}  # each request has a timeout around all of it
    return (
        lambda: ConnectionPool.from_url(url, **options, retry=Retry(NoBackoff(), 0)),
        lambda: AsyncPool.from_url(url, **awaited, retry=AsyncRetry(NoBackoff(), 0)),
    )


def _by_sentinels(place: StoreUrl, ours: Mapping[str, str], options: dict[str, Any]) -> tuple[Maker, Maker]:
    """Return the makers of pools that ask the Sentinels for the primary, at each new connection."""
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
        own = options | secure | given
        return SentinelPool(name, Sentinel(sentinels, sentinel_kwargs=asking), **own, retry=Retry(NoBackoff(), 0))

    def make_async() -> Any:
        own = options | {"socket_timeout": None} | secure | given_async
        return AsyncSentinelPool(
            name, AsyncSentinel(sentinels, sentinel_kwargs=asking), **own, retry=AsyncRetry(NoBackoff(), 0)
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
