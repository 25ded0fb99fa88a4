"""The bench for checking a store, and the form of a check."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Literal, NamedTuple, TypeVar

from onceward.core.clock import Clock
from onceward.core.drivers import Steps, drive, drive_async
from onceward.core.policy import Policy
from onceward.core.record import Record, Reply, Write
from onceward.core.selections import ChainOf, Selection
from onceward.core.writes import first_claim
from onceward.stores.contract import Page, Store
from onceward.testing.clock import ManualClock

T = TypeVar("T")
Mode = Literal["sync", "async"]
MODES: tuple[Mode, ...] = ("sync", "async")


class NotConforming(AssertionError):
    """A store breaks the contract. The message is the sentence that does not hold.

    Cause: The store does not do what the sentence in the message says.

    Fix: Change the store until ``conform`` passes.
    """


class Bench:
    """A new store to check, and the tools to do so.

    Args:
        make: takes a clock, returns a store with an empty ledger on it.
        again: takes the store and the clock, returns a second handle on the same data; None if there is none.
        mode: "sync" or "async".
        advance: lets this many seconds pass on the store's clock; None moves the clock that ``make`` was given.
    """

    def __init__(
        self,
        make: Callable[[Clock], Store],
        again: Callable[[Store, Clock], Store] | None = None,
        *,
        mode: Mode = "sync",
        advance: Callable[[float], None] | None = None,
    ) -> None:
        self.clock: ManualClock | None = ManualClock() if advance is None else None
        clock = self.clock or ManualClock()
        self.store = make(clock)
        self.other = self.store if again is None else again(self.store, clock)
        self.mode = mode
        self.advance = advance or clock.advance  # lets seconds pass on the store's clock
        self._runner = asyncio.Runner() if mode == "async" else None

    def do(self, steps: Steps[T], store: Store | None = None) -> T:
        target = self.store if store is None else store
        return drive(steps, target) if self._runner is None else self._runner.run(drive_async(steps, target))

    def race(self, attempt: Callable[[Store, int], Steps[T]], count: int = 8) -> list[T]:
        """Drive ``count`` steps at once, alternating between the two handles: in threads, or as tasks of one loop."""
        stores = [(self.store, self.other)[number % 2] for number in range(count)]
        if self._runner is not None:
            return self._runner.run(_together([drive_async(attempt(s, n), s) for n, s in enumerate(stores)]))
        start = threading.Barrier(count)

        def run(number: int) -> T:
            start.wait()
            return drive(attempt(stores[number], number), stores[number])

        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(run, range(count)))

    def insert(self, write: Write) -> Reply:
        return self.do(self.store.insert(write))

    def swap(self, write: Write, seen: Record) -> Reply:
        return self.do(self.store.swap(write, seen))

    def load(self, key: str) -> Record | None:
        """Return the record that the other handle reads. It must be what this one wrote."""
        return self.do(self.other.load(key), self.other).record

    def claimed(self, key: str = "key", owner: str = "a", **changes: object) -> Record:
        """Insert a claim and return its record."""
        return won(self.insert(claim_of(key, owner, **changes)), "insert")

    def swapped(self, seen: Record, **changes: object) -> Record:
        """Swap ``seen`` for its next version, with ``changes``, and return the record."""
        return won(self.swap(next_of(seen, **changes), seen), "swap")

    def close(self) -> None:
        self.other.close()
        self.store.close()
        if self._runner is not None:
            self._runner.close()


async def _together(coroutines: Sequence[Coroutine[object, object, T]]) -> list[T]:
    return list(await asyncio.gather(*coroutines))


_POLICY: Final = Policy(lease=60.0, retention=600.0)


def claim_of(key: str = "key", owner: str = "a", **changes: Any) -> Write:
    """Return a claim to write, with ``changes`` to its fields."""
    return first_claim(key, owner, None, _POLICY)._replace(**{"worker": "host/1", **changes})


_KEPT = ["status", "owner", "fence", "attempts", "fingerprint", "result", "error", "created_at", "worker", "needs"]


def next_of(record: Record, **changes: object) -> Write:
    """Return the write that follows ``record`` under the same owner, with ``changes`` to its fields."""
    same = {name: getattr(record, name) for name in _KEPT}
    return claim_of(record.key, **{**same, "beat": record.beat + 1, **changes})


def won(reply: Reply, verb: str) -> Record:
    """Return the record of a reply; raises NotConforming unless it won."""
    if not reply.won or reply.record is None:
        raise NotConforming(f"a won {verb} returns the record that it made")
    return reply.record


def expect(holds: bool, sentence: str) -> None:
    """Raise NotConforming with ``sentence`` unless it holds."""
    if not holds:
        raise NotConforming(sentence)


def pages(bench: Bench, selection: Selection, limit: int) -> Iterator[Page]:
    """Yield each page of a selection; raises NotConforming if one is too large, or they do not end."""
    after: str | None = None
    for _ in range(200):
        page = bench.do(bench.store.select(selection, after, limit))
        # What a scan for a chain has read is all on its page.
        expect(
            isinstance(selection, ChainOf) or len(page.records) <= limit, "a page has no more records than asked for"
        )
        yield page
        if page.next is None:
            return
        after = page.next
    raise NotConforming("the pages of a selection come to an end")


def records_of(bench: Bench, selection: Selection, limit: int = 100) -> list[Record]:
    """Return the records of a selection, read in pages of ``limit``."""
    return [record for page in pages(bench, selection, limit) for record in page.records]


def purge_all(bench: Bench, limit: int) -> None:
    """Purge until nothing is left to purge, at most ``limit`` records at a time."""
    after: str | None = None
    for _ in range(100):
        purged = bench.do(bench.store.purge(limit, after))
        expect(purged.deleted <= limit, "a purge deletes no more than its limit")
        if purged.next is None:
            return
        after = purged.next
    raise NotConforming("the parts of a purge come to an end")


class Check(NamedTuple):
    """One sentence of the contract and the function that checks it on a bench."""

    name: str
    says: str
    function: Callable[[Bench], None]

    def __str__(self) -> str:
        return self.name

    def run(self, bench: Bench) -> None:
        """Check it, and close the bench; raises NotConforming."""
        try:
            self.function(bench)
        finally:
            bench.close()


CHECKS: list[Check] = []


def check(function: Callable[[Bench], None]) -> Callable[[Bench], None]:
    """Make a function a check; its docstring is the sentence that it checks."""
    CHECKS.append(Check(function.__name__, (function.__doc__ or "").strip(), function))
    return function
