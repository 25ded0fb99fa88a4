"""Checkpoints buffer items: ``add`` claims a key, and a flush completes all keys together after writing their items.

``state.py`` makes all decisions and requests. The class here, and its twin in ``awaiting.py``, lock, drive the steps, and
call the user's flush in between.
"""

import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Final, Generic, Literal, TypeVar

from onceward.batch.checkpoint.state import BufferedItem, CheckpointState
from onceward.claim.called import Call, refuse_not_begun
from onceward.claim.replays import CallOutcome
from onceward.claim.running import run_under
from onceward.core.drivers import settle
from onceward.errors import OncewardError, ResultUnavailable
from onceward.observe.logs import logger

T = TypeVar("T")
Added = Literal["added", "buffered", "replayed"]
Flush = Callable[[list[T]], object]
ITSELF: Final = "flush and on_done run while their checkpoint is at work, and cannot use it"
_LONGEST_SLEEP: Final = 3600.0  # seconds; more than threading.TIMEOUT_MAX would end the thread


class Checkpoint(Generic[T]):
    """The sink within ``with once.checkpoint(...)``. Any number of threads can add to it, one at a time."""

    def __init__(self, state: CheckpointState[T], flush: Flush[T], on_done: Flush[T] | None) -> None:
        self._state = state
        self._function = flush
        self._on_done = on_done
        # Take the lock itself: an interrupt while entering the condition would leave it locked for ever.
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._flushing: int | None = None  # the thread that runs the user's functions
        self._watcher: threading.Thread | None = None

    def add(self, item: T) -> Added:
        """Claim the key of ``item`` and buffer it. Flush the buffer if it is full.

        Returns:
            "added": its key is claimed, or already flushed and completed. "buffered": an item with the same key is in the
            buffer; this one shares its outcome and is not flushed itself. Acknowledge either only after ``on_done`` gets it,
            ``flush()`` returns, or the block ends without an error. "replayed": it was completed before and is not flushed
            again. Acknowledge it now.

        Raises:
            Busy, Parked, Mismatch, KeyMissing, Reentrant, StoreError, TypeError: this item is not added; the others are not
                affected, and you can go on. Do not acknowledge it.
            OncewardError: the checkpoint failed before, or is closed; nothing was claimed.
            Exception: from a flush of this item or earlier ones.
        """
        self._refuse_itself()
        with self._state.observers, self._lock:
            self._state.check_open()
            item_key = self._state.item_key(item)
            if item_key is None:
                return "buffered"
            if self._state.crowded(item_key.size):
                self._flush()
            try:
                claim = self._state.guard.enter(item_key.key, item_key.fingerprint, value=False)
            except ResultUnavailable:
                return "replayed"
            match claim:  # not isinstance(): an interrupt may come after any call
                case CallOutcome():
                    return "replayed"
            try:
                first = self._state.put(item, item_key, claim)
            except BaseException:
                self._state.leave(claim)
                raise
            if self._state.due:
                self._flush()
            elif first and self._state.seconds_left is not None:
                self._watch_soon()
        return "added"

    def flush(self) -> None:
        """Flush the buffer now, if it holds anything.

        Raises:
            Exception: from the flush. All its items were given back, and the checkpoint takes no more.
            LeaseLost: a claim was lost before the flush, so nothing was flushed and the other items were given back; or
                during the flush, so another worker may write that item again.
            ResultNotRecorded: the flush succeeded, but the store stayed away until the leases ended.
            OncewardError: the checkpoint failed before, or is closed.
        """
        self._refuse_itself()
        with self._state.observers, self._lock:
            self._state.check_open()
            self._flush()

    def close(self, error: BaseException | None) -> None:
        """Flush what is left, or give it back after an ``error`` in the block. The ``with`` statement calls this."""
        if error is not None and self._state.inherited:
            return
        self._refuse_itself()
        self._state.closed = True
        with self._state.observers, self._lock:
            self._wake.notify_all()
            if error is None:
                self._state.check()
                self._flush()
            else:
                self._state.note(error)
                held = self._state.take()
                settle(lambda: self._state.giving_back(held, error), self._state.guard.store)

    def _refuse_itself(self) -> None:
        self._state.check_own()  # before the lock: in a forked child it may stay locked for ever
        if self._flushing == threading.get_ident():
            raise OncewardError(ITSELF)

    def _flush(self) -> None:
        """Flush all held items, and end their claims as the flush ended. The lock is held."""
        self._flushing = threading.get_ident()  # set first: a signal handler may flush at any point
        held: list[BufferedItem[T]] = []
        try:
            if held := self._state.take():
                self._write(held)
        except BaseException as error:
            self._state.cut_short(held, error)
            raise
        finally:
            self._flushing = None

    def _write(self, held: list[BufferedItem[T]]) -> None:
        state, store = self._state, self._state.guard.store
        lost = state.lost(held)
        if lost is not None:
            settle(lambda: state.giving_back(held, lost), store)
            raise lost
        call = Call(partial(self._function, [one.item for one in held]))
        failure = run_under(None, call, lambda _, call: settle(lambda: state.ending(held, call), store))
        if failure is not None:
            raise failure
        items, trouble = state.recorded(held)
        if self._on_done is not None and items:
            try:
                refuse_not_begun(self._on_done, self._on_done(items))
            except Exception as error:  # all is recorded; unacknowledged items come again, as duplicates
                log_on_done(error)
        if trouble is not None:
            raise trouble

    def _watch_soon(self) -> None:
        """Schedule the flush for when the oldest item is old enough. The lock is held."""
        if self._watcher is not None:
            self._wake.notify_all()
            return
        watcher = threading.Thread(
            target=copy_context().run, args=(self._watch,), name="onceward-checkpoint", daemon=True
        )
        try:
            watcher.start()
        except RuntimeError:
            return  # no more threads: the next add checks the age
        self._watcher = watcher

    def _watch(self) -> None:
        with self._lock:
            while not self._state.closed and not self._state.failed:
                seconds_left = self._state.seconds_left
                if seconds_left is None or seconds_left > 0:
                    self._wake.wait(None if seconds_left is None else min(seconds_left, _LONGEST_SLEEP))
                    continue
                try:
                    self._flush()
                except BaseException as error:  # raised by the next call
                    self._state.fail(error, is_raised=False)


def log_on_done(error: Exception) -> None:
    """Log that the user's ``on_done`` raised ``error``."""
    logger().error("on_done of a checkpoint raised. The ledger is as it was", exc_info=error)
