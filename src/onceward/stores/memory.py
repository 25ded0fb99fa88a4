"""The ledger in this process's memory: for tests, and the simplest example of a store."""

import threading
from collections.abc import Mapping
from functools import partial
from typing import cast

from onceward.core.clock import Clock, boottime
from onceward.core.drivers import Steps
from onceward.core.protocol import SOME_DAY, is_known
from onceward.core.record import Record, Reply, Write
from onceward.core.urls import shown_url
from onceward.stores import StoreUrl
from onceward.stores.capabilities import point_of, token_of
from onceward.stores.contract import MORE, Damaged, DuePage, OneByOne, Page, Purged
from onceward.stores.locks import owns, reentered, watch_forks
from onceward.stores.observed import Observed


class MemoryStore(OneByOne, Observed):
    """Records in a dict behind a lock.

    Args:
        clock: the store's own clock, in seconds; pass one to move time by hand.
    """

    url = "memory:"
    resolution = 0.0
    poll = 0.02
    max_result = 256 * 1024
    capabilities: Mapping[str, str] = {
        "due": "onceward.stores.memory:due",
        "inspect": "onceward.stores.inspection:InMemory",
        "observe": "onceward.stores.observed:observe",
        "outbox": "onceward.stores.memory:outbox",
        "survey": "onceward.stores.survey:in_memory",
    }

    def __init__(self, clock: Clock = boottime) -> None:
        self.records: dict[str, Record] = {}
        self._clock = clock
        self._fence = 0  # the largest fence of a deleted record
        self.after_fork_in_child()
        watch_forks(self)

    def exchange(self, request: object) -> object:
        """Run one request under the lock."""
        if self._is_inside():
            raise reentered(self.url)
        with self._lock:
            return request()  # type: ignore[operator]  # the verbs yield nothing else

    async def exchange_async(self, request: object) -> object:
        """Run one request under the lock, which is never held for long."""
        return type(self).exchange(self, request)  # not the object's exchange: an observer would count it twice

    def insert(self, write: Write) -> Steps[Reply]:
        reply: Reply = yield partial(self._insert, write)
        return reply

    def swap(self, write: Write, seen: Record) -> Steps[Reply]:
        reply: Reply = yield partial(self._swap, write, seen)
        return reply

    def load(self, key: str) -> Steps[Reply]:
        reply: Reply = yield partial(self._load, key)
        return reply

    def scan(self, prefix: str, after: str | None, limit: int) -> Steps[Page]:
        """Read records in the order of their keys."""
        page: Page = yield partial(self._scan, prefix, after, limit)
        return page

    def delete(self, seen: Record | Damaged) -> Steps[Reply]:
        reply: Reply = yield partial(self._delete, seen)
        return reply

    def purge(self, limit: int, after: str | None = None) -> Steps[Purged]:
        gone: int = yield partial(self._purge, limit)
        return Purged(gone, MORE if gone == limit else None)

    def close(self) -> None:
        """Do nothing: the records go with the object."""

    def action(self, request: object) -> str:
        return cast("partial[object]", request).func.__name__.removeprefix("_")

    def _load(self, key: str) -> Reply:
        return Reply(False, self.records.get(key), self._clock())

    def _insert(self, write: Write) -> Reply:
        now = self._clock()
        held = self.records.get(write.key)
        if held is not None:
            return tuple.__new__(Reply, (False, held, now))
        record = write.at(now)
        if record.fence <= self._fence and not write.fence:
            record = record._replace(fence=self._fence + 1)
        self.records[write.key] = record
        return tuple.__new__(Reply, (True, record, now))

    def _swap(self, write: Write, seen: Record) -> Reply:
        now = self._clock()
        held = self.records.get(write.key)
        if held is None or not self._matches(held, seen):
            return tuple.__new__(Reply, (False, held, now))
        self.records[write.key] = record = write.at(now)
        return tuple.__new__(Reply, (True, record, now))

    def _matches(self, held: Record, seen: Record) -> bool:
        return (held.owner, held.fence, held.beat) == (seen.owner, seen.fence, seen.beat)

    def _scan(self, prefix: str, after: str | None, limit: int) -> Page:
        keys = sorted(k for k in self.records if k.startswith(prefix) and (after is None or k > after))
        records = [self.records[k] for k in keys[:limit]]
        return Page(records, records[-1].key if len(keys) > limit else None, self._clock())

    def _delete(self, seen: Record | Damaged) -> Reply:
        held = self.records.get(seen.key)
        if held is None or isinstance(seen, Damaged) or not self._matches(held, seen):
            return Reply(False, held, self._clock())
        self._forget(seen.key)
        return Reply(True, held, self._clock())

    def _purge(self, limit: int) -> int:
        now = self._clock()
        expired = [r for r in self.records.values() if r.expires_at is not None and r.expires_at <= now]
        gone = [r.key for r in expired if is_known(r)][:limit]  # a newer version may still need the others
        for key in gone:
            self._forget(key)
        return len(gone)

    def due_page(self, after: str | None, limit: int, ahead: float) -> DuePage:
        now, start = self._clock(), point_of(after)
        places = sorted((r.due_at, r.key) for r in self.records.values() if r.due_at is not None)
        over = [place for place in places if place[0] <= now + ahead and place > start]
        later = [at for at, _ in places if now + ahead < at < now + SOME_DAY]
        records = [self.records[key] for _, key in over[:limit]]
        following = token_of(*over[limit - 1]) if len(over) > limit else None
        return DuePage(records, following, now, later[0] - now if later else None)

    def _forget(self, key: str) -> None:
        self._fence = max(self._fence, self.records.pop(key).fence)

    def before_fork(self) -> None:
        """Do nothing: the child gets a copy of the records."""

    def after_fork_in_parent(self) -> None:
        """Do nothing."""

    def after_fork_in_child(self) -> None:
        """Make the lock, which another thread of the parent may have held."""
        self._lock = threading.RLock()
        self._is_inside = owns(self._lock)


def outbox(_: MemoryStore) -> Steps[None]:
    """Check nothing (:data:`onceward.stores.capabilities.OUTBOX`)."""
    yield from ()


def due(store: MemoryStore, after: str | None, limit: int, ahead: float) -> Steps[DuePage]:
    """Read records whose messages are due (:data:`onceward.stores.capabilities.DUE`)."""
    page: DuePage = yield partial(store.due_page, after, limit, ahead)
    return page


CAPABILITIES = MemoryStore.capabilities


def open_url(parts: StoreUrl, options: dict[str, str]) -> MemoryStore:
    """Open ``memory:``. Raises ValueError if the URL has more than that."""
    if parts.netloc or parts.path or options:
        raise ValueError(f"{shown_url(parts.geturl())!r}: the in-memory store takes nothing after memory:")
    return MemoryStore()
