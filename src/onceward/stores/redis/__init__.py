"""A ledger in Redis or Valkey: ``Once("redis://host:6379/0")``, or :func:`open_ledger` for a client of your own."""

from urllib.parse import quote, urlencode

try:
    import redis as _redis
except ImportError as error:
    raise ImportError("Redis needs its driver: pip install 'onceward[redis]'") from error

from onceward.core.urls import shown_url
from onceward.stores import StoreUrl, limits_in
from onceward.stores.redis.names import RedisNames
from onceward.stores.redis.opening import servers_at, servers_of
from onceward.stores.redis.requests import Confirmation
from onceward.stores.redis.store import RedisStore

__all__ = ["CAPABILITIES", "open_ledger", "open_url"]

CAPABILITIES = RedisStore.capabilities
OPTIONS = ("prefix", "timeout", "lanes", "eviction", "wait", "disk", "cluster", "sentinel", "sentinel_password")
_SWITCHES = {
    "eviction": ("allow", "accepts a server that evicts"),
    "disk": ("yes", "waits until a write is on the disk"),
    "cluster": ("yes", "is for a Redis Cluster"),
}


def open_ledger(
    client: object,
    *,
    prefix: str = "onceward",
    timeout: float = 5.0,
    lanes: int = 4,
    eviction: bool = False,
    wait: int = 0,
    disk: bool = False,
) -> RedisStore:
    """Return the ledger on a client of yours. Nothing is sent before its first use.

    An asynchronous client serves coroutines, and their claims' heartbeats, on the event loop that uses it. Handlers that are not
    asynchronous need a blocking one, or a URL.

    Args:
        client: a ``Redis`` or ``RedisCluster`` of ``redis`` or ``redis.asyncio``. You close it yourself.
        prefix: what the ledger's Redis keys begin with.
        timeout: seconds for a confirmation by replicas, and to wait for a lane; for the rest the client's own timeouts hold.
        lanes: requests at a time. Requests that wait are sent together.
        eviction: whether to accept a server that evicts records when its memory is full.
        wait: how many replicas must confirm each write.
        disk: whether each write must be on the disks of server and replicas (WAITAOF of Redis 7.2 and Valkey).

    Raises:
        TypeError, ValueError: an option is not valid.
    """
    kinds = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(client).__mro__}
    if kinds.isdisjoint({"redis.Redis", "redis.RedisCluster"}) or {"redis.Pipeline", "redis.ClusterPipeline"} & kinds:
        raise TypeError(f"{type(client).__name__}: give a Redis or RedisCluster of redis or redis.asyncio")
    is_async = ".asyncio." in type(client).__module__ or hasattr(client, "aclose")
    for name, value, fits, hint in (
        ("wait", wait, 0 <= wait < 100, "a number of replicas"),
        ("lanes", lanes, lanes >= 1, "a number of connections"),
        ("timeout", timeout, 0 < timeout < 3600, "a positive number of seconds, below an hour"),
    ):
        if not fits:
            raise ValueError(f"{name}={value!r}: give {hint}")
    confirmation = Confirmation(wait, disk, timeout / 2)
    servers = servers_of(client, confirmation, lanes, timeout, is_async=is_async)
    return RedisStore(servers, RedisNames(prefix), f"redis:///?prefix={prefix}", evicts=eviction)


def open_url(parts: StoreUrl, options: dict[str, str]) -> RedisStore:
    """Open ``redis://user:password@host:6379/0``, ``rediss://`` for TLS, or ``valkey://`` and ``valkeys://``.

    All options but :data:`OPTIONS` are redis-py's own, such as ``ssl_ca_certs``.

    Args:
        parts: the URL.
        options: ``prefix=onceward``; ``timeout=5`` (seconds for one request); ``lanes=4`` (connections to a server at a time). All
            threads share these lanes, and each event loop has as many. ``eviction=allow``; ``wait=REPLICAS`` that must
            confirm each write; ``disk=yes``, on their disks, too; ``cluster=yes``; ``sentinel=NAME`` of the primary, with
            ``sentinel_password``. The hosts are then Sentinels. All others are redis-py's.

    Raises:
        ValueError: an option is not valid.
    """
    url = shown_url(parts.geturl())
    ours = {name: value for name, value in options.items() if name in OPTIONS}
    theirs = {name: value for name, value in options.items() if name not in OPTIONS}
    timeout, most = limits_in(ours, 4, url)
    wait = ours.get("wait", "0")
    if not (wait.isdecimal() and int(wait) < 100):
        raise ValueError(f"{url!r}: wait must be a number of replicas")
    for name, (value, does) in _SWITCHES.items():
        if ours.get(name, value) != value:
            raise ValueError(f"{url!r}: {name}={value} {does}; leave it out otherwise")
    if not (parts.path.strip("/") or "0").isdecimal():  # redis-py would take database 0
        raise ValueError(f"{url!r}: give the number of a database after the host, as in redis://host:6379/0")
    if "cluster" in ours and "sentinel" in ours:
        raise ValueError(f"{url!r}: cluster=yes goes without sentinel=")
    scheme = parts.scheme.replace("valkey", "redis")
    place = parts._replace(scheme=scheme, query=urlencode(theirs, quote_via=quote))
    try:
        names = RedisNames(ours.get("prefix", "onceward"))
        servers = servers_at(place, ours, Confirmation(int(wait), "disk" in ours, timeout / 2), most, timeout)
    except (ValueError, TypeError, _redis.RedisError) as error:
        raise ValueError(f"{url!r}: {error}; of our own there are {', '.join(OPTIONS)}") from None
    return RedisStore(servers, names, url, evicts="eviction" in ours)
