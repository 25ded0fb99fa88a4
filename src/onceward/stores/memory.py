"""The ledger in this process's memory: for tests, and the simplest example of a store."""

import sys
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

from onceward.core.clock import Clock, boottime
from onceward.core.comparisons import meets
from onceward.core.drivers import Steps
from onceward.core.protocol import STATUSES, is_known
from onceward.core.record import Record, Reply, Write
from onceward.core.selections import ByKey, DueWithin, Selection
from onceward.core.urls import shown_url
from onceward.core.views import SOME_DAY, STATES
from onceward.stores import StoreUrl
from onceward.stores.contract import MORE, Damaged, OneByOne, Page, Purged, point_of, token_of
from onceward.stores.locks import Forked, owns, reentered, watch_forks
from onceward.stores.observed import Observed
from onceward.stores.survey import Survey


class MemoryStore(OneByOne, Observed, Forked):
    """Records in a dict behind a lock.

    Args:
        clock: the store's own clock, in seconds; pass one to move time by hand.
    """

    url = "memory:"
    resolution = 0.0
    poll = 0.02
    max_result = 256 * 1024
    capabilities: Mapping[str, str] = {
        "inspect": "onceward.stores.inspection:InMemory",
        "observe": "onceward.stores.observed:observe",
        "outbox": "onceward.stores.contract:finds_due",
        "survey": "onceward.stores.memory:survey",
    }

    def __init__(self, clock: Clock = boottime) -> None:
        self.records: dict[str, Record] = {}
        self._clock = clock
        self._fence = 0  # the largest fence of a deleted record
        self.after_fork_in_child()
        watch_forks(self)

    def exchange(self, request: Any) -> object:
        if self._is_inside():
            raise reentered(self.url)
        with self._lock:
            return request()

    async def exchange_async(self, request: Any) -> object:
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

    def select(self, selection: Selection, after: str | None, limit: int) -> Steps[Page]:
        page: Page = yield partial(self._select, selection, after, limit)
        return page

    def delete(self, seen: Record | Damaged) -> Steps[Reply]:
        reply: Reply = yield partial(self._delete, seen)
        return reply

    def purge(self, limit: int, after: str | None = None) -> Steps[Purged]:
        count: int = yield partial(self._purge, limit)
        return Purged(count, MORE if count == limit else None)

    def close(self) -> None:
        """Do nothing: the records go with the object."""

    def action(self, request: Any) -> str:
        return str(request.func.__name__).removeprefix("_")

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
        return held is seen or held.version == seen.version

    def _select(self, selection: Selection, after: str | None, limit: int) -> Page:
        now, by_time, start = self._clock(), isinstance(selection, DueWithin), (0.0, after or "")
        if by_time:
            start = point_of(after)
        matches = [one for one in self.records.values() if selection.means(one, now)]
        places = sorted((one.due_at or 0.0 if by_time else 0.0, one.key) for one in matches)
        rest = [place for place in places if place > start]
        point = rest[limit - 1] if len(rest) > limit else None
        following = None if point is None else token_of(*point) if by_time else point[1]
        return Page([self.records[key] for _, key in rest[:limit]], following, now, wait=self._wait(selection, now))

    def _wait(self, selection: Selection, now: float) -> float | None:
        if not isinstance(selection, DueWithin):
            return None
        times = [one.due_at for one in self.records.values() if one.due_at is not None]
        return min((at - now for at in times if now + selection.seconds < at < now + SOME_DAY), default=None)

    def _delete(self, seen: Record | Damaged) -> Reply:
        held = self.records.get(seen.key)
        if held is None or isinstance(seen, Damaged) or not self._matches(held, seen):
            return Reply(False, held, self._clock())
        self._forget(seen.key)
        return Reply(True, held, self._clock())

    def _purge(self, limit: int) -> int:
        now = self._clock()
        expired = [r for r in self.records.values() if r.expires_at is not None and r.expires_at <= now]
        keys = [r.key for r in expired if is_known(r)][:limit]  # a newer version may still need the others
        for key in keys:
            self._forget(key)
        return len(keys)

    def _forget(self, key: str) -> None:
        self._fence = max(self._fence, self.records.pop(key).fence)

    def after_fork_in_child(self) -> None:
        """Make the lock, which another thread of the parent may have held. The child gets a copy of the records."""
        self._lock = threading.RLock()
        self._is_inside = owns(self._lock)


def survey(store: MemoryStore) -> Steps[Survey]:
    """Count the records (:data:`onceward.stores.capabilities.SURVEY`)."""
    page = yield from store.select(ByKey(), None, sys.maxsize)
    counts = {name: sum(meets(one, clause, page.now) for one in page.records) for name, clause in STATES.items()}
    return Survey(STATUSES, True, counts, len(page.records), True, page.now)


def open_url(parts: StoreUrl, options: dict[str, str]) -> MemoryStore:
    """Open ``memory:``. Raises ValueError if the URL has more than that."""
    if parts.netloc or parts.path or options:
        raise ValueError(f"{shown_url(parts.geturl())!r}: the in-memory store takes nothing after memory:")
    return MemoryStore()
