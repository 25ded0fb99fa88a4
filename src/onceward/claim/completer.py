"""Runs keys to their end that were left half done: their worker vanished, or their client gave up.

A record that keeps its call's arguments (``keep_input=True``) needs no redelivery: any worker with the handler can claim it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from onceward.claim.called import is_same_ledger
from onceward.claim.decorated import DecoratedHandler
from onceward.claim.guard import Guard
from onceward.claim.handler import handler_of
from onceward.claim.inputs import InputCodec, KeptInput, read_input
from onceward.core.comparisons import meets
from onceward.core.drivers import Steps, drive, drive_async
from onceward.core.policy import Seal
from onceward.core.protocol import is_known
from onceward.core.record import Record, Reply
from onceward.core.recovery import NotFree, leave, resume
from onceward.core.retries import patience, retry_transient
from onceward.core.selections import ByKey
from onceward.core.views import Criteria, is_expired
from onceward.core.whole import CALLS, drive_whole, drive_whole_async
from onceward.errors import Parked
from onceward.observe.logs import logger
from onceward.results.classes import NotReplayable

if TYPE_CHECKING:
    from onceward.claim.factory import GuardFactory
    from onceward.stores.contract import Page

Function = Callable[..., object]
_PAGE: Final = 100  # records of a request: each may keep 64 KiB


class Sweep(NamedTuple):
    """What happened to the half-done keys that one search found: how many keys have each outcome.

    Attributes:
        completed: their handlers returned.
        failed: their handlers raised, or their results could not be recorded.
        parked: they are parked now, by ``on_lapse="park"`` or ``max_attempts``.
        taken: another worker was faster.
        left: nobody here can run them: the arguments were not kept, or do not fit the handler. The log says why.
    """

    completed: int = 0
    failed: int = 0
    parked: int = 0
    taken: int = 0
    left: int = 0


class KeepingHandler(NamedTuple):
    """A handler whose calls keep their arguments."""

    guard: Guard
    inputs: InputCodec
    function: Function
    is_async: bool


def keeping(guards: "GuardFactory", function: Function) -> KeepingHandler:
    """Return what is known of a handler: one that is guarded on this ledger, or one as it is given to ``run``.

    Raises:
        ValueError, TypeError: its calls keep no arguments, or it is guarded on another ledger.
    """
    handler = decorated(function)
    if handler is None:
        return _checked(guards.for_run(function, (), {}, is_async=True), function)
    if not is_same_ledger(handler.guard.store, guards.store):
        name, url = handler.inputs.name, handler.guard.store.url
        raise ValueError(
            f"{name} is guarded on another ledger: on {url}, not on {guards.store.url}. Use its own Once here"
        )
    return handler


def decorated(function: Function) -> KeepingHandler | None:
    """Return what is known of a decorated handler; None if it is not decorated. ValueError: its calls keep no arguments."""
    guarded = getattr(function, "guarded", None)
    return _checked(guarded.guard, guarded.function) if isinstance(guarded, DecoratedHandler) else None


def _checked(guard: Guard, function: Function) -> KeepingHandler:
    if guard.inputs is None:
        name = getattr(function, "__qualname__", repr(function))
        raise ValueError(
            f"{name}: its calls keep no arguments, so nobody can run them again: give it keep_input=True "
            "(a WebhookReceiver: accept=True)"
        )
    return KeepingHandler(guard, guard.inputs, function, handler_of(function).is_async)


class Completer:
    """Runs the half-done keys of some handlers to their end.

    Args:
        handlers: the handlers, all on one ledger.
        released: seconds after which keys that were given back count, too; None leaves them alone.
        stop: whether to begin no more keys.

    Raises:
        ValueError: the age is negative or over 100 years, or two functions have one name.
    """

    def __init__(
        self, handlers: Sequence[KeepingHandler], released: float | None, stop: Callable[[], bool] = lambda: False
    ) -> None:
        self._store = handlers[0].guard.store
        self._clock = handlers[0].guard.clock
        self._searches = [Criteria(("LAPSED",))]
        if released is not None:
            self._searches.append(Criteria(("RELEASED",), released))
        for criteria in self._searches:
            criteria.check()
        self._stop = stop
        self._warned: set[tuple[str, int]] = set()  # the keys and fences that the log tells of
        self._spaces: dict[str, dict[str, KeepingHandler]] = {}  # by namespace, then by the function's own name
        for one in handlers:
            by_name = self._spaces.setdefault(one.guard.name, {})
            if by_name.setdefault(one.inputs.name, one).function != one.function:
                raise ValueError(
                    f"{one.inputs.name}: two functions have this name, so a kept call could be of either: give one another name"
                )

    def run(self, call: Function = Guard.call) -> Sweep:
        """Look once; ``call`` runs the handlers. Raises StoreError if the ledger cannot be reached."""
        return drive_whole(self._sweep(drive, call), CALLS)

    async def run_async(self) -> Sweep:
        """Like :meth:`run`, for coroutine functions, and functions that do not block."""
        return await drive_whole_async(self._sweep(drive_async, Guard.call_async), CALLS)

    def _sweep(self, ask: Callable[..., object], call: Function) -> Steps[Sweep]:
        """Yield calls: to ``ask`` the store, and to ``call`` handlers."""
        counts: Counter[str] = Counter()
        for handlers in self._spaces.values():
            for key in (yield partial(ask, self._keys(handlers), self._store)):
                if self._stop():
                    break
                seen: Reply = yield partial(ask, self._load(key), self._store)
                counts[(yield from self._again(handlers, seen, call))] += 1
        return Sweep(**counts)

    def _again(self, handlers: dict[str, KeepingHandler], seen: Reply, call: Function) -> Steps[str]:
        """Make a call again, and return what became of its key."""
        record = seen.record
        if record is None or not self._is_wanted(record, seen.now):
            return "taken"  # not half done any more
        try:
            handler, call_input = _handler_of(handlers, record)
            args, kwargs = handler.inputs.decode(call_input)
        except (NotReplayable, TypeError) as error:
            if (record.key, record.fence) not in self._warned:
                self._warned.add((record.key, record.fence))
                logger().warning("%s: left as it is, and not run: %s", record.key, error)
            return "left"
        guard = handler.guard.claiming_by(partial(resume, seen), leave)
        try:
            yield partial(call, guard, record.key, None, handler.function, args, kwargs)
        except NotFree:
            return "taken"
        except Exception as error:
            if isinstance(error, Parked) and error.key == record.key:
                return "parked"
            # The text of a handler's own exception may quote the arguments, which must not be logged.
            logger().warning("%s: run again, and it raised %s", record.key, type(error).__name__)
            return "failed"
        return "completed"

    def _keys(self, handlers: dict[str, KeepingHandler]) -> Steps[list[str]]:
        """Return the keys of a namespace that are half done, those first that have waited longest."""
        prefix = f"{next(iter(handlers.values())).guard.name}:"
        lease_ends: dict[str, float] = {}
        any_of = Criteria(
            tuple(state for one in self._searches for state in one.states)
        )  # DynamoDB charges for each look
        after: str | None = None
        while True:
            page: Page = yield from self._store.select(ByKey(prefix, any_of), after, _PAGE)
            for record in page.records:
                if self._is_wanted(record, page.now) and not is_expired(record, page.now):
                    lease_ends[record.key] = record.lease_until
            if (after := page.next) is None:
                return sorted(lease_ends, key=lease_ends.__getitem__)

    def _is_wanted(self, record: Record, now: float) -> bool:
        return any(meets(record, criteria.clause, now) for criteria in self._searches)

    def _load(self, key: str) -> Steps[Reply]:
        return retry_transient(partial(self._store.load, key), self._clock, patience(self._clock))


def _handler_of(handlers: dict[str, KeepingHandler], record: Record) -> tuple[KeepingHandler, KeptInput]:
    if not is_known(record):
        raise NotReplayable("its record needs a newer version of onceward")
    if record.input is None:
        raise NotReplayable("its arguments were not kept. Deliver it again")
    call_input = _opened(record.input, [one.guard.policy.seal for one in handlers.values()])
    if call_input.function not in handlers:
        raise NotReplayable(f"it is a call of {call_input.function}, which is not among the handlers given")
    return handlers[call_input.function], call_input


def _opened(text: str, seals: Sequence[Seal | None]) -> KeptInput:
    """Return what a record keeps, opened by the first seal that can; raises NotReplayable."""
    *others, last = seals
    for seal in others:
        with suppress(NotReplayable):
            return read_input(text, seal)
    return read_input(text, last)
