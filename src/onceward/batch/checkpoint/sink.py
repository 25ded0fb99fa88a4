"""What both forms of a checkpoint have: items with their claims, when to flush them, and how their claims end.

The generators yield calls, and get what these return: ``blocking.py`` makes the calls, and ``awaiting.py`` awaits them.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import msgspec

from onceward.batch.checkpoint.limits import Limits
from onceward.batch.ends import HandledClaim, end_together, give_back_together
from onceward.claim import called, heartbeat
from onceward.claim.called import OVER, Call, refuse_not_begun
from onceward.claim.guard import Guard
from onceward.claim.replays import CallOutcome
from onceward.core import worker
from onceward.core.drivers import Steps
from onceward.core.record import COMPLETED
from onceward.errors import ForkedClaim, LeaseLost, Mismatch, OncewardError, ResultUnavailable
from onceward.keys.ledger_keys import ledger_key
from onceward.keys.reading import KeyReader
from onceward.observe.logs import logger
from onceward.observe.observers import DeferredObservers

T = TypeVar("T")
Added = Literal["added", "buffered", "replayed"]
Flush = Callable[[list[T]], object]
_FLUSHING: ContextVar[tuple[object, ...]] = ContextVar(
    "onceward_flushing", default=()
)  # also in the flush's tasks and threads


class BufferedItem(HandledClaim, Generic[T], eq=False, kw_only=True):
    """An item in the buffer, with its claim."""

    item: T
    key: str
    fingerprint: str | None
    size: int
    twins: list[T] = msgspec.field(default_factory=list)  # later items with the same key, which share its outcome


class Sink(Generic[T]):
    """The items that wait for a flush, and the first failure."""

    # How a key is claimed, steps are settled, and the flush is called: the forms that block, or those that are awaited.
    _enter: Callable[..., Any]
    _settle: Callable[..., Any]
    _run: Callable[..., Any]

    def __init__(
        self, guard: Guard, keys: KeyReader, limits: Limits[T], flush: Flush[T], on_done: Flush[T] | None
    ) -> None:
        self._guard = guard
        self._store = guard.store
        self._observers = guard.observers = DeferredObservers(guard.observers)  # told when no lock is held
        self._keys, self._limits = keys, limits
        self._function, self._on_done = flush, on_done
        self._held: dict[str, BufferedItem[T]] = {}
        self._bytes = 0
        self._oldest = 0.0
        self._failure: BaseException | None = None
        self._is_raised = False
        self._flushing: object = None  # marks the running flush
        self._process = worker.generation
        self._closed = False  # set when its block is being left
        self._begin()

    def _begin(self) -> None:
        """Choose the forms of what is called, and make the lock."""
        raise NotImplementedError

    # --- what a caller does, under the lock -----------------------------------------------------------------------

    def _add(self, item: T) -> Steps[Added]:
        self._check_open()
        one = self._read(item)
        if one is None:
            return "buffered"
        most = self._limits.bytes
        if most is not None and self._held and self._bytes + one.size > most:
            yield from self._flush()
        try:
            claim = yield partial(self._enter, one.key, one.fingerprint)
        except ResultUnavailable:
            return "replayed"
        match claim:  # not isinstance(): an interrupt may come after any call
            case CallOutcome():
                return "replayed"
        try:
            first = not self._held
            if first:
                self._oldest = self._guard.clock()
            one.claim = claim
            self._bytes += one.size
            self._held[one.key] = one
        except BaseException:
            if self._held.get(one.key) is not one:
                claim.drop()
            raise
        if self._is_due:
            yield from self._flush()
        elif first and self._seconds_left is not None:
            self._watch_soon()
        return "added"

    def _flush_now(self) -> Steps[None]:
        self._check_open()
        yield from self._flush()

    def _close(self, error: BaseException | None) -> Steps[None]:
        self._stop_watching()
        if error is None:
            self._check()
            yield from self._flush()
            return
        if self._failure is not None and not self._is_raised:
            self._is_raised = True
            error.add_note(f"onceward: before that, the flush of a checkpoint failed: {self._failure!r}")
        held = self._take()
        yield partial(self._settle, lambda: self._giving_back(held, error), self._store)

    def _flush(self) -> Steps[None]:
        """Flush all held items, and end their claims as the flush ended."""
        before, self._flushing = _FLUSHING.get(), object()  # set first: a signal handler may flush at any point
        _FLUSHING.set((*before, self._flushing))
        held: list[BufferedItem[T]] = []
        try:
            if held := self._take():
                yield from self._write(held)
        except BaseException as error:
            self._forget(held)
            if any(one.held.settled != COMPLETED for one in held):
                self._fail(error)
            raise
        finally:
            self._flushing = None
            _FLUSHING.set(before)

    def _write(self, held: list[BufferedItem[T]]) -> Steps[None]:
        lost = self._lost(held)
        if lost is not None:
            yield partial(self._settle, lambda: self._giving_back(held, lost), self._store)
            raise lost
        call = Call(partial(self._function, [one.item for one in held]))
        leave = lambda _, call: self._settle(lambda: self._ending(held, call), self._store)
        failure = yield partial(self._run, None, call, leave)
        if failure is not None:
            raise failure
        items, trouble = self._recorded(held)
        if self._on_done is not None and items:
            try:
                refuse_not_begun(self._on_done, (yield partial(self._on_done, items)))
            except Exception as error:  # all is recorded; unacknowledged items come again, as duplicates
                logger().error("on_done of a checkpoint raised. The ledger is as it was", exc_info=error)
        if trouble is not None:
            raise trouble

    def _watch_soon(self) -> None:
        """Schedule the flush for when the oldest item is old enough."""
        raise NotImplementedError

    def _stop_watching(self) -> None:
        raise NotImplementedError

    # --- whether it can be used -----------------------------------------------------------------------------------

    @property
    def inherited(self) -> bool:
        """Whether this process was forked from the owner, so that the claims are not its own."""
        return self._process != worker.generation

    def _check_own(self) -> None:
        if self.inherited:
            raise ForkedClaim(f"the checkpoint of {self._guard.name}")

    def _check_outside(self) -> None:
        """Raise OncewardError within its own flush, and ForkedClaim in a forked process. Call it before you take the lock."""
        self._check_own()
        if self._flushing is not None and self._flushing in _FLUSHING.get():
            raise OncewardError("flush and on_done run while their checkpoint is at work, and cannot use it")

    def _fail(self, error: BaseException, *, is_raised: bool = True) -> None:
        """Take no more items. Without ``is_raised`` (the error is raised now), the next check raises it."""
        if self._failure is None:
            self._failure = error
        self._is_raised = is_raised

    def _check(self) -> None:
        """After a failure, raise its error. If that was raised before, raise one that says so."""
        failure = self._failure
        if failure is None:
            return
        if not self._is_raised and isinstance(failure, Exception):
            self._is_raised = True
            raise failure
        raise OncewardError(
            "this checkpoint has failed before, and the keys of its items were given back. It takes no more items: leave its "
            "block, and open a new checkpoint for the redeliveries"
        ) from failure

    def _check_open(self) -> None:
        self._check()
        if self._closed:
            raise OncewardError("this checkpoint is closed: use it within its with block")

    # --- the buffer -----------------------------------------------------------------------------------------------

    def _read(self, item: T) -> BufferedItem[T] | None:
        """Return an item as it is buffered once its key is claimed. If its key is already held, add the item there and return None.

        Raises:
            KeyMissing, Mismatch, TypeError: it cannot be added; other items are not affected.
        """
        arguments = {"item": item}
        key = ledger_key(self._guard.name, self._keys.key(arguments, arguments))
        fingerprint, limits = self._keys.fingerprint(arguments, arguments), self._limits
        held = self._held.get(key)
        if held is None:
            size = 0 if limits.bytes is None else limits.size_of(item)
            self._check_own()  # the user's callables may have forked
            return BufferedItem(item=item, key=key, fingerprint=fingerprint, size=size)
        if held.fingerprint != fingerprint:
            raise Mismatch(key)
        held.twins.append(item)
        return None

    def _take(self) -> list[BufferedItem[T]]:
        """Return all items, in the order added, and empty the buffer."""
        held, self._held, self._bytes = list(self._held.values()), {}, 0
        return held

    @property
    def _is_due(self) -> bool:
        items, size, *_ = self._limits
        full = (items is not None and len(self._held) >= items) or (size is not None and self._bytes >= size)
        return bool(self._held) and (full or self._seconds_left == 0)

    @property
    def _seconds_left(self) -> float | None:
        """Seconds until the oldest item is old enough. None without an item or an age."""
        age = self._limits.seconds
        return None if age is None or not self._held else max(0.0, self._oldest + age - self._guard.clock())

    # --- how claims end -------------------------------------------------------------------------------------------

    def _lost(self, held: Sequence[BufferedItem[T]]) -> LeaseLost | None:
        """Return the error about claims lost while their items waited, or None. It is a failure for good."""
        lost = [one.key for one in held if one.held.lost]
        if not lost:
            return None
        error = LeaseLost(lost[0], "be flushed")
        self._fail(error)
        return error

    def _recorded(self, held: Sequence[BufferedItem[T]]) -> tuple[list[T], Exception | None]:
        """Return the items whose keys are completed, including later ones with the same keys, and why others are not."""
        self._forget(held)
        items = [item for one in held if one.held.settled == COMPLETED for item in (one.item, *one.twins)]
        troubled = [one for one in held if one.held.settled != COMPLETED]
        if not troubled:
            return items, None
        trouble = troubled[0].trouble
        assert trouble is not None
        self._fail(trouble)
        return items, trouble

    def _ending(self, held: Sequence[BufferedItem[T]], call: Call) -> Steps[BaseException | None]:
        """End all as the flush ended, and return its failure. You can drive it again after an interrupt."""
        failure = called.failure(call)
        if failure is None:
            self._check_own()
        elif not self.inherited:
            self._fail(failure)
        if failure is None or (isinstance(failure, Exception) and not self.inherited):
            for one in held:
                one.handled(None, failure)
            yield from end_together(self._guard, held, (2,))
            if failure is not None:
                self._forget(held)
                if (trouble := next((one.trouble for one in held if one.trouble is not None), None)) is not None:
                    failure.add_note(f"onceward: and then {trouble}")
        elif not self.inherited:
            self.drop(held)
        call[OVER] = True
        return failure

    def _giving_back(self, held: Sequence[BufferedItem[T]], error: BaseException) -> Steps[None]:
        """Give all back because of ``error``, without counting an attempt. Its own errors become notes on ``error``."""
        self._forget(held)
        if not held:
            return
        claims = [one.held for one in held]
        try:
            yield from give_back_together(self._guard, claims)
            for claim in claims:
                if claim.story is not None:
                    claim.story.note("released", claim.record)
                claim.tell()
        except OncewardError as trouble:  # the keys stay claimed to the end of their leases
            error.add_note(f"onceward: and then, when {len(held)} keys were to be given back: {trouble}")

    def drop(self, held: Sequence[BufferedItem[T]] | None = None) -> None:
        """Leave all claimed to the end of their leases: an interrupted flush may still go on. By default, what waits in the buffer."""
        for one in self._take() if held is None else held:
            one.held.drop()

    def _forget(self, held: Sequence[BufferedItem[T]]) -> None:
        for one in held:
            heartbeat.HEARTBEAT.forget(one.held)
            one.held.tell()
