"""What a server of Redis loses of a stream."""

from collections.abc import Iterator, Mapping

from onceward.stores.redis.schema import is_evicting


def losses(info: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each setting that loses entries, and its fix. ``info`` is what INFO says."""
    if is_evicting(dict(info)):
        yield f"it evicts streams when it is full ({info['maxmemory_policy']})", "set maxmemory-policy noeviction"
    if info.get("role", "master") != "master":
        yield "it is a replica, which takes no writes", "give the address of the primary"
    elif info.get("aof_enabled") == "0" and info.get("connected_slaves", "0") == "0":
        yield "its append-only file is off and it has no replica, so a restart loses entries", "set appendonly yes"


def risks(info: Mapping[str, str]) -> Iterator[str]:
    """Yield what can lose entries, but does not have to."""
    if info.get("connected_slaves", "0") != "0":
        yield "its replicas follow asynchronously, so a failover loses the last entries"
