"""What people ask of a Redis ledger: to make it, what it holds, and the facts about its server, for doctor."""

import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from onceward.core.drivers import Steps, drive
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED
from onceward.errors import StoreError
from onceward.stores.capabilities import check_options
from onceward.stores.contract import Part
from onceward.stores.inspection import Finding
from onceward.stores.redis.faults import is_refused
from onceward.stores.redis.requests import Asking, Confirmation, RoundTrip, ScriptCall
from onceward.stores.redis.schema import info_of, is_evicting, version_of
from onceward.stores.redis.scripts import READ_HASH, SURVEY
from onceward.stores.redis.store import RedisStore
from onceward.stores.sql.inspection import clock_findings, off_by
from onceward.stores.survey import UNFINISHED, Survey

_PERSISTENCE: Final = "redis.io/docs/latest/operate/oss_and_stack/management/persistence"
_REPLICATION: Final = "redis.io/docs/latest/operate/oss_and_stack/management/replication"
_EVICTION: Final = "redis.io/docs/latest/develop/reference/eviction"
# What the script counts. ENDED: past their expires_at, of which Redis has deleted the completed ones. DUE: all with messages.
_COUNTED: Final = ("TOTAL", "ENDED", IN_PROGRESS, RELEASED, PARKED, "LAPSED", "UNSENT", "DUE")


class RedisServer(NamedTuple):
    """A server, as a client of the ledger sees it.

    Attributes:
        info: what INFO says.
        appendfsync: when the append-only file reaches the disk; None if CONFIG is forbidden, as by managed services.
        off: seconds by which the server's clock is ahead of this host's, at least; negative if it is behind.
        confirmation: what the ledger's writes wait for.
    """

    info: dict[str, str]
    appendfsync: str | None
    off: float
    confirmation: Confirmation

    @property
    def is_local(self) -> bool:
        return False

    def findings(self) -> Iterator[Finding]:
        yield from self._of_memory()
        yield from self._of_disk()
        yield from self._of_replicas()
        yield from clock_findings(self.off, "replicas")

    def _of_memory(self) -> Iterator[Finding]:
        policy = self.info.get("maxmemory_policy")
        evicts = is_evicting(self.info)
        if evicts is None:
            yield Finding(
                "unknown",
                "eviction",
                "the server does not say whether it evicts records",
                "what is evicted is forgotten, and runs again",
                "see that maxmemory-policy is noeviction",
                _EVICTION,
            )
        elif evicts:
            why = "what is evicted is forgotten: handlers run again, running claims are lost"
            fix = "set maxmemory-policy noeviction"
            yield Finding("error", "eviction", f"maxmemory-policy is {policy}", why, fix, _EVICTION)
        else:
            yield Finding("ok", "eviction", "the server evicts nothing")

    def _of_disk(self) -> Iterator[Finding]:
        if self.info.get("aof_enabled") == "0":
            yield Finding(
                "error",
                "appendonly",
                "the append-only file is off",
                "a restart forgets what was recorded since the last snapshot, or everything: handlers run again",
                "set appendonly yes",
                _PERSISTENCE,
            )
            return
        if "aof_enabled" not in self.info:
            says = "the server does not say whether it has an append-only file"
            yield Finding(
                "skipped", "appendonly", says, "it was not looked at", "see that appendonly is yes", _PERSISTENCE
            )
            return
        if self.info.get("aof_last_write_status", "ok") != "ok":
            why = "a restart forgets what was recorded since then"
            yield Finding(
                "error", "appendonly", "the last write of the append-only file failed", why, "look at its disk"
            )
        if self.confirmation.disk:
            yield Finding("ok", "appendfsync", "a write is on disk when it is answered (disk=yes)")
        elif self.appendfsync is None:
            yield Finding(
                "skipped",
                "appendfsync",
                "appendfsync cannot be read: CONFIG is forbidden",
                "it was not looked at",
                "ask your service; without appendfsync always, a crash forgets the last second",
                _PERSISTENCE,
            )
        elif self.appendfsync == "always":
            yield Finding("ok", "appendfsync", "a write is on disk when it is answered (appendfsync always)")
        else:
            yield Finding(
                "warning" if self.appendfsync == "everysec" else "error",
                "appendfsync",
                f"appendfsync is {self.appendfsync}",
                "a crash of the host forgets the last moments: completed effects can run again, running claims be made twice",
                "set appendfsync always, or accept that loss",
                _PERSISTENCE,
            )

    def _of_replicas(self) -> Iterator[Finding]:
        count = int(self.info.get("connected_slaves", "0"))
        if count and not self.confirmation.replicas:
            yield Finding(
                "warning",
                "failover",
                f"{count} replica(s) follow asynchronously",
                "a failover forgets the last writes: a completed effect can run again, a running claim can be made twice",
                "add wait=1 to the URL, which makes that rare, or accept that loss",
                _REPLICATION,
            )


def inspect(store: RedisStore) -> RedisServer:
    """Return the facts (:data:`onceward.stores.capabilities.INSPECT`)."""
    sent = time.time()
    (seconds, microseconds), *_ = store.exchange(Asking(["TIME"]))
    now = int(seconds) + int(microseconds) / 1e6
    return RedisServer(_info(store), _appendfsync(store), off_by(now, sent), store.confirmation)


def _info(store: RedisStore) -> dict[str, str]:
    """Return what INFO says. Of several servers, the worst one counts; nothing if INFO is forbidden."""
    try:
        infos = [info_of(answer) for answer in store.exchange(Asking(["INFO"]))]
    except StoreError as error:
        if not is_refused(error):
            raise
        return {}
    return max(infos, key=_badness)


def _badness(info: dict[str, str]) -> tuple[object, ...]:
    return bool(is_evicting(info)), info.get("aof_enabled") == "0", info.get("aof_last_write_status", "ok") != "ok"


def _appendfsync(store: RedisStore) -> str | None:
    """Return the setting of the server that may lose most; None if one does not tell."""
    try:
        answers = store.exchange(Asking(["CONFIG", "GET", "appendfsync"]))
    except StoreError:
        return None
    values = set()
    for answer in answers:
        pairs = answer.items() if isinstance(answer, dict) else zip(answer[::2], answer[1::2], strict=True)
        values.add(next((_text(value) for name, value in pairs if _text(name) == "appendfsync"), None))
    return next((one for one in (None, "no", "everysec") if one in values), "always")


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def survey(store: RedisStore) -> Steps[Survey]:
    """Return what the ledger holds (:data:`onceward.stores.capabilities.SURVEY`).

    A completed record that has expired is gone, and its entry in the indexes stays until the next purge.
    """
    answers = yield RoundTrip("count", [ScriptCall(SURVEY, shard.keys_of(b"")) for shard in store.names.shards])
    counts = dict(zip(_COUNTED, map(sum, zip(*(answer[1:] for answer in answers), strict=True)), strict=True))
    total, ended, due = (counts.pop(name) for name in ("TOTAL", "ENDED", "DUE"))
    counts["REFUSED"] = due - counts["UNSENT"]
    if ended == 0:
        counts |= {"EXPIRED": 0, COMPLETED: total - sum(counts[status] for status in UNFINISHED)}
    now = max(float(answer[0]) for answer in answers)
    return Survey(UNFINISHED, True, counts, total, ended == 0, now)


def exists(store: RedisStore) -> bool:
    """Return whether the ledger is there (:data:`onceward.stores.capabilities.EXISTS`)."""
    return drive(version_of(store.names, READ_HASH), store) is not None


def provision(store: RedisStore, options: AbstractSet[str]) -> Steps[list[Part]]:
    """Make the ledger (:data:`onceward.stores.capabilities.PROVISION`)."""
    check_options(store.url, options)
    return migrate(store)


def migrate(store: RedisStore) -> Steps[list[Part]]:
    """Check the version, since there is no earlier one (:data:`onceward.stores.capabilities.MIGRATE`)."""
    is_new = yield from store.prepare()
    return [Part(f"ledger {store.names.prefix}", is_new)]
