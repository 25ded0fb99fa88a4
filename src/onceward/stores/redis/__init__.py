"""A ledger in Redis or Valkey: ``Once("redis://host:6379/0")``."""

from urllib.parse import quote, urlencode

try:
    import redis as _redis
except ImportError as error:
    raise ImportError("Redis needs its driver: pip install 'onceward[redis]'") from error

from onceward.core.urls import shown_url
from onceward.stores import StoreUrl, limits_in
from onceward.stores.redis.names import RedisNames
from onceward.stores.redis.opening import servers_at
from onceward.stores.redis.requests import Confirmation
from onceward.stores.redis.store import RedisStore

__all__ = ["open_url"]

OPTIONS = ("prefix", "timeout", "lanes", "wait", "disk", "cluster", "sentinel", "sentinel_password")
_SWITCHES = {
    "disk": ("yes", "waits until a write is on the disk"),
    "cluster": ("yes", "is for a Redis Cluster"),
}


def open_url(parts: StoreUrl, options: dict[str, str]) -> RedisStore:
    """Open ``redis://user:password@host:6379/0``, ``rediss://`` for TLS, or ``valkey://`` and ``valkeys://``.

    All options but :data:`OPTIONS` are redis-py's own, such as ``ssl_ca_certs``.

    Args:
        parts: the URL.
        options: ``prefix=onceward``; ``timeout=5`` (seconds for one request); ``lanes=2`` (connections to a server at a time). All
            threads share these lanes, and each event loop has as many. ``wait=REPLICAS`` that must
            confirm each write; ``disk=yes``, on their disks, too; ``cluster=yes``; ``sentinel=NAME`` of the primary, with
            ``sentinel_password``. The hosts are then Sentinels. All others are redis-py's.

    Raises:
        ValueError: an option is not valid.
    """
    url = shown_url(parts.geturl())
    ours = {name: value for name, value in options.items() if name in OPTIONS}
    theirs = {name: value for name, value in options.items() if name not in OPTIONS}
    timeout, most = limits_in(ours, url)
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
    confirmation = Confirmation(int(wait), "disk" in ours, timeout / 2)
    try:
        names = RedisNames(ours.get("prefix", "onceward"))
        servers = servers_at(place, ours, confirmation, most, timeout)
    except (ValueError, TypeError, _redis.RedisError) as error:
        raise ValueError(f"{url!r}: {error}; of our own there are {', '.join(OPTIONS)}") from None
    return RedisStore(servers, confirmation, names, url, timeout)
