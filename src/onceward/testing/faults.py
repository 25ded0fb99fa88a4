"""Faults at the exchange seam: a store that fails, stalls or repeats itself where a plan says so.

``Faults`` wraps any store and is a store itself::

    store = Faults(MemoryStore(), at({2: fail_after()}))      # the reply to the second exchange is lost
    store = Faults(MemoryStore(), when(settling, fail_before()))
    store = Faults(SqliteStore(path), randomly(seed=7, rate=0.2))

A plan is any callable that takes an :class:`Ask` and returns a :class:`Fault`, or None to let the exchange pass.
"""

import itertools
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

from onceward.core.arguments import check_type
from onceward.core.drivers import Sleep, Steps, drive, drive_async, mapped
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED, Record, Write
from onceward.errors import StoreError
from onceward.results.step_entries import entries_of
from onceward.stores.contract import Store

T = TypeVar("T")


class Kind(Enum):
    """What goes wrong with one exchange."""

    FAIL_BEFORE = "the request never reaches the store"
    FAIL_AFTER = "the store does as asked, but its reply is lost"
    LATE = "the caller gives up, and the request reaches the store later, before another exchange"
    DELAY = "the request takes its time"
    TWICE = "the request reaches the store twice; the reply is the second one's"


def transient(message: str) -> StoreError:
    """Return the error that a store raises when a retry may help."""
    return StoreError(message, transient=True)


class Fault(NamedTuple):
    """One fault: its kind, the error that the caller sees, and a pause before anything else happens."""

    kind: Kind
    error: Callable[[str], BaseException] = transient
    seconds: float = 0.0
    sleep: Callable[[float], object] | None = None
    after: int = 1


class Ask(NamedTuple):
    """One exchange, as a plan sees it: its number (from 1), the verb, its arguments and the store's own request."""

    number: int
    verb: str
    arguments: tuple[object, ...]
    request: object

    @property
    def writes(self) -> list[Write]:
        """The verb's writes; empty if it only reads."""
        lists = [argument if type(argument) in {list, tuple} else [argument] for argument in self.arguments]
        members = [member for one in lists for member in cast("Sequence[object]", one)]
        writes = [member[0] if type(member) is tuple else member for member in members]
        return [write for write in writes if isinstance(write, Write)]


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


# --- plans --------------------------------------------------------------------------------------------------------


def at(faults: Mapping[int, Fault]) -> Plan:
    """Plan faults by the number of the exchange, counted from 1."""
    return lambda ask: faults.get(ask.number)


def when(predicate: Callable[[Ask], bool], fault: Fault, times: int | None = None) -> Plan:
    """Plan ``fault`` for the exchanges that ``predicate`` picks; if ``times`` is given, only for the first of them."""
    rest = itertools.count() if times is None else iter(range(times))
    return lambda ask: fault if predicate(ask) and next(rest, None) is not None else None


def randomly(seed: int, rate: float, faults: Sequence[Fault] = ()) -> Plan:
    """Plan faults for a share ``rate`` (0 to 1) of all exchanges, the same ones for the same ``seed``.

    Without ``faults`` these are failures before and after the write, and requests sent twice.
    """
    chance = random.Random(seed)
    choice = list(faults) or [fail_before(), fail_after(), twice()]
    return lambda _: chance.choice(choice) if chance.random() < rate else None


def settling(ask: Ask) -> bool:
    """Return whether an exchange ends a claim (completes, releases or parks)."""
    return any(write.status != IN_PROGRESS for write in ask.writes)


# --- the store ----------------------------------------------------------------------------------------------------


def tagging(verb: str) -> Any:
    """Return a verb of a store: that of the store ``_behind()`` it, each request tagged with where it comes from."""

    def call(self: Any, *arguments: object) -> Steps[object]:
        return tagged(verb, arguments, getattr(self._behind(), verb)(*arguments))

    return call


class Faults:
    """A store whose exchanges go wrong as planned.

    Args:
        store: the store behind it.
        plan: says which exchange gets which fault. You can set the attribute ``plan`` at any time.
    """

    capabilities: Mapping[str, str] = {}  # their requests would not go by the plan

    def __init__(self, store: Store, plan: Plan) -> None:
        check_type("Faults(store)", store, "exchange", "a store, such as MemoryStore()")
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


def tagged(verb: str, arguments: tuple[object, ...], steps: Steps[T]) -> Steps[T]:
    """Run a verb's steps, and yield each request as an :class:`Ask`."""
    return mapped(steps, partial(Ask, 0, verb, arguments), Exception)  # a session's own steps decide what it means


_ENDS: Final = {COMPLETED: "the record of the result", RELEASED: "giving the key back", PARKED: "parking the key"}


class Mishap(Enum):
    """What happens to the worker at a point."""

    KILLED_BEFORE = "the worker is killed before {}"
    KILLED_AFTER = "the worker is killed right after {}"
    REQUEST_LOST = "{} fails: the request is lost"
    REPLY_LOST = "{} is made, but its reply is lost"
    LEDGER_GONE = "the ledger is out of reach from {} on"
    PAUSED = "the worker is paused before {} for longer than its lease, and another one gets the delivery"


AT_EXCHANGE: Final = tuple(Mishap)
# Before an effect is right after the point before it, where the worker is killed as well.
AT_EFFECT: Final = (Mishap.KILLED_AFTER, Mishap.REQUEST_LOST, Mishap.REPLY_LOST, Mishap.PAUSED)


# Nobody else can do anything meanwhile: the transaction is open, and in SQLite it has the file.
IN_TRANSACTION: Final = (Mishap.KILLED_BEFORE, Mishap.KILLED_AFTER)


class Point(NamedTuple):
    """One point of a run: an exchange with the ledger, or a call of a downstream; and what can happen there."""

    label: str
    mishaps: tuple[Mishap, ...]


def label_of(ask: Ask) -> str:
    """Return what an exchange is for, in words."""
    writes = ask.writes
    if ask.verb == "commit":
        return f"the transaction's {str(ask.request).partition(' ')[0]}"
    if not writes:
        return f"the ledger's {ask.verb} of {ask.arguments[0]}"
    if len(writes) > 1:
        return f"{_done(writes[0], None)} of {len(writes)} keys"
    seen = ask.arguments[-1] if ask.verb == "swap" else None
    if ask.verb == "swap_many":
        ((_, seen), *_) = cast("list[tuple[Write, Record]]", ask.arguments[0])
    return f"{_done(writes[0], seen if isinstance(seen, Record) else None)} of {writes[0].key}"


def _done(write: Write, seen: Record | None) -> str:
    if write.status != IN_PROGRESS:
        return _ENDS.get(write.status, f"the write of {write.status}")
    if seen is None:
        return "the claim"
    if seen.owner != write.owner:
        return "the takeover" if seen.status == IN_PROGRESS else "the new claim"
    if write.steps == seen.steps:
        return "the renewal"
    new = [entry for name, entry in entries_of(write.steps).items() if entries_of(seen.steps).get(name) != entry]
    if not new:
        return "the change of the steps"
    return f"the {'record' if new[0].done else 'note before the'} of the step {new[0].name!r}".replace("the of", "of")
