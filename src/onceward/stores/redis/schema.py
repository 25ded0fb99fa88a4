"""What a ledger says of itself, and what its server must be like before it is used."""

from typing import Final

from onceward.core.drivers import Steps
from onceward.errors import StoreError
from onceward.observe.logs import logger
from onceward.stores.redis.faults import is_refused
from onceward.stores.redis.names import RedisNames
from onceward.stores.redis.requests import Asking, RoundTrip, ScriptCall
from onceward.stores.redis.scripts import PREPARE, READ_HASH, Script

VERSION: Final = 1  # of the layout; also of how many shards there are
KEEPS: Final = "noeviction"


def prepare(names: RedisNames, url: str) -> Steps[bool]:
    """Make the ledger, and return whether it was not there before.

    Raises:
        StoreError: its layout is of a later version, or its server evicts.
    """
    yield from _check_memory(url)
    was = yield from version_of(names, READ_HASH)
    version = yield from version_of(names, PREPARE)
    if version != str(VERSION):
        raise StoreError(
            f"ledger {url}: its layout is of version {version}, and this version of onceward knows {VERSION}: upgrade onceward"
        )
    return was is None


def version_of(names: RedisNames, script: Script) -> Steps[str | None]:
    """Return the version of a ledger's layout by a script that returns what it says of itself; None if there is no ledger."""
    (answer,) = yield RoundTrip("prepare", [ScriptCall(script, [names.meta], [VERSION])])
    version = dict(zip(answer[::2], answer[1::2], strict=True)).get(b"version")
    return None if version is None else version.decode()


def info_of(answer: bytes | dict[str, object]) -> dict[str, str]:
    """Return the fields of an answer to INFO, which redis-py may have read already."""
    if isinstance(answer, dict):
        return {name: str(value) for name, value in answer.items()}
    lines = answer.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def is_evicting(memory: dict[str, str]) -> bool | None:
    """Return whether a server deletes keys when its memory is full; None if it does not say."""
    if "maxmemory" not in memory or "maxmemory_policy" not in memory:
        return None
    return memory["maxmemory"] != "0" and memory["maxmemory_policy"] != KEEPS


def _check_memory(url: str) -> Steps[None]:
    """Raise StoreError if a server evicts. Warn if it does not say."""
    try:
        answers = yield Asking(["INFO", "memory"])
    except StoreError as error:
        if not is_refused(error):
            raise
        logger().warning("ledger %s: whether the server evicts records cannot be read: %s", url, error)
        return
    for answer in answers:
        memory = info_of(answer)
        does = is_evicting(memory)
        if does is None:
            logger().warning("ledger %s: the server does not say whether it evicts records (maxmemory_policy)", url)
        elif does:
            raise StoreError(
                f"ledger {url}: the server evicts records when its memory is full (maxmemory-policy {memory['maxmemory_policy']}): "
                "then handlers run again. Set maxmemory-policy noeviction, or use another server"
            )
