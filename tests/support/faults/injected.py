"""Faults at the exchange seam: a store that fails, stalls or repeats itself where a plan says so.

    store = Faults(MemoryStore(), at({2: fail_after()}))      # the reply to the second exchange is lost
    store = Faults(MemoryStore(), when(settling, fail_before()))

A plan is any callable that takes an ``Ask`` and returns a ``Fault``, or None to let the exchange pass.
"""

import itertools
import random
import threading
from collections.abc import Callable, Mapping
from enum import Enum
from typing import NamedTuple

from onceward.core.drivers import Sleep, Steps, drive, drive_async
from onceward.core.record import IN_PROGRESS
from onceward.stores.contract import Store
from onceward.testing.mishaps import Ask, tagging, transient


class Kind(Enum):
    """What goes wrong with one exchange."""

    FAIL_BEFORE = "the request never reaches the store"
    FAIL_AFTER = "the store does as asked, but its reply is lost"
    LATE = "the caller gives up, and the request reaches the store later, before another exchange"
    DELAY = "the request takes its time"
    TWICE = "the request reaches the store twice; the reply is the second one's"


class Fault(NamedTuple):
    """One fault: its kind, the error that the caller sees, and a pause before anything else happens."""

    kind: Kind
    error: Callable[[str], BaseException] = transient
    seconds: float = 0.0
    sleep: Callable[[float], object] | None = None
    after: int = 1


Plan = Callable[[Ask], Fault | None]


def fail_before(error: Callable[[str], BaseException] = transient) -> Fault:
    """Fail without reaching the store. ``error`` makes the exception from a message."""
    return Fault(Kind.FAIL_BEFORE, error)


def fail_after(error: Callable[[str], BaseException] = transient) -> Fault:
    """Lose the reply: the store does the request, and ``error`` is raised."""
    return Fault(Kind.FAIL_AFTER, error)


def late(after: int = 1, error: Callable[[str], BaseException] = transient) -> Fault:
    """Raise ``error`` now. The request reaches the store right before the ``after``-th exchange from here."""
    return Fault(Kind.LATE, error, after=after)


def delay(seconds: float, sleep: Callable[[float], object] | None = None) -> Fault:
    """Pause for ``seconds`` before the request. ``sleep`` can be a manual clock's ``advance``."""
    return Fault(Kind.DELAY, seconds=seconds, sleep=sleep)


def twice() -> Fault:
    """Send the request twice, as an SDK client that retries does."""
    return Fault(Kind.TWICE)


def at(faults: Mapping[int, Fault]) -> Plan:
    """Plan faults by the number of the exchange, counted from 1."""
    return lambda ask: faults.get(ask.number)


def when(predicate: Callable[[Ask], bool], fault: Fault, times: int | None = None) -> Plan:
    """Plan ``fault`` for the exchanges that ``predicate`` picks; if ``times`` is given, only for the first of them."""
    rest = itertools.count() if times is None else iter(range(times))
    return lambda ask: fault if predicate(ask) and next(rest, None) is not None else None


def randomly(seed: int, rate: float, faults: tuple[Fault, ...] = ()) -> Plan:
    """Plan faults for a share ``rate`` (0 to 1) of all exchanges, the same ones for the same ``seed``.

    Without ``faults`` these are failures before and after the write, and requests sent twice.
    """
    chance = random.Random(seed)
    choice = list(faults) or [fail_before(), fail_after(), twice()]
    return lambda _: chance.choice(choice) if chance.random() < rate else None


def settling(ask: Ask) -> bool:
    """Return whether an exchange ends a claim (completes, releases or parks)."""
    return any(write.status != IN_PROGRESS for write in ask.writes)


class Faults:
    """A store whose exchanges go wrong as planned. You can set its ``plan`` at any time."""

    capabilities: Mapping[str, str] = {}  # their requests would not go by the plan

    def __init__(self, store: Store, plan: Plan) -> None:
        self.store = store
        self.plan = plan
        self.url = store.url
        self.resolution = store.resolution
        self.poll = store.poll
        self.max_result = store.max_result
        self.asked: list[Ask] = []
        self._lock = threading.Lock()
        self._late: list[tuple[int, object]] = []

    def exchange(self, request: object) -> object:
        return drive(self._course(request), self.store)

    async def exchange_async(self, request: object) -> object:
        return await drive_async(self._course(request), self.store)

    def _course(self, request: object) -> Steps[object]:
        """Yield what reaches the store, and return the reply that the caller gets."""
        ask, fault = self._plan(request)
        for waiting in self._arriving(ask.number):
            _ = yield waiting  # a list, which "yield from" takes, cannot be sent the reply
        if fault is None:
            return (yield ask.request)
        if fault.sleep is not None:
            fault.sleep(fault.seconds)
        elif fault.seconds:
            yield Sleep(fault.seconds)
        if fault.kind is Kind.LATE:
            with self._lock:
                self._late.append((ask.number + fault.after, ask.request))
        if fault.kind in {Kind.FAIL_BEFORE, Kind.LATE}:
            raise fault.error(f"exchange {ask.number} ({ask.verb}) failed")
        reply = yield ask.request
        if fault.kind is Kind.FAIL_AFTER:
            raise fault.error(f"the reply to exchange {ask.number} ({ask.verb}) was lost")
        return (yield ask.request) if fault.kind is Kind.TWICE else reply

    def _plan(self, request: object) -> tuple[Ask, Fault | None]:
        with self._lock:
            number = len(self.asked) + 1
            ask = request._replace(number=number) if isinstance(request, Ask) else Ask(number, "?", (), request)
            self.asked.append(ask)
            return ask, self.plan(ask)

    def _arriving(self, number: int) -> list[object]:
        with self._lock:
            due = [request for when_due, request in self._late if when_due <= number]
            self._late = [item for item in self._late if item[0] > number]
        return due

    def _behind(self) -> Store:
        return self.store

    insert, swap, load = tagging("insert"), tagging("swap"), tagging("load")
    insert_many, swap_many, changed = tagging("insert_many"), tagging("swap_many"), tagging("changed")
    select, delete, purge = tagging("select"), tagging("delete"), tagging("purge")

    def close(self) -> None:
        self.store.close()
