"""Checkpoints buffer items: ``add`` claims a key, and a flush completes all keys together after writing their items."""

import threading
from contextvars import copy_context
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from onceward.batch.checkpoint.limits import Limits
from onceward.batch.checkpoint.sink import Added, Flush, Sink
from onceward.claim.called import run_under
from onceward.claim.guard import Guard
from onceward.claim.handler import handler_of
from onceward.core.drivers import Steps, settle
from onceward.core.whole import CALLS, drive_whole
from onceward.keys.reading import KeyReader

if TYPE_CHECKING:
    from onceward.batch.checkpoint.awaiting import AsyncCheckpoint

T = TypeVar("T")
R = TypeVar("R")
_LONGEST_SLEEP: Final = 3600.0  # seconds; more than threading.TIMEOUT_MAX would end the thread


class Checkpoint(Sink[T]):
    """The sink within ``with once.checkpoint(...)``. Any number of threads can add to it, one at a time."""

    _watcher: threading.Thread | None = None

    def _begin(self) -> None:
        self._enter, self._settle, self._run = self._guard.enter, settle, run_under
        # Take the lock itself: an interrupt while entering the condition would leave it locked for ever.
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)

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
        return self._locked(self._add(item))

    def flush(self) -> None:
        """Flush the buffer now, if it holds anything.

        Raises:
            Exception: from the flush. All its items were given back, and the checkpoint takes no more.
            LeaseLost: a claim was lost before the flush, so nothing was flushed and the other items were given back; or
                during the flush, so another worker may write that item again.
            ResultNotRecorded: the flush succeeded, but the store stayed away until the leases ended.
            OncewardError: the checkpoint failed before, or is closed.
        """
        self._locked(self._flush_now())

    def close(self, error: BaseException | None) -> None:
        """Flush what is left, or give it back after an ``error`` in the block. The ``with`` statement calls this."""
        if error is not None and self.inherited:
            return
        self._check_outside()
        self._closed = True
        self._locked(self._close(error))

    def _locked(self, steps: Steps[R]) -> R:
        self._check_outside()
        with self._observers, self._lock:
            return drive_whole(steps, CALLS)

    def _stop_watching(self) -> None:
        self._wake.notify_all()

    def _watch_soon(self) -> None:
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
            while not self._closed and self._failure is None:
                seconds_left = self._seconds_left
                if seconds_left is None or seconds_left > 0:
                    self._wake.wait(None if seconds_left is None else min(seconds_left, _LONGEST_SLEEP))
                    continue
                try:
                    drive_whole(self._flush(), CALLS)
                except BaseException as error:  # raised by the next call
                    self._fail(error, is_raised=False)


class CheckpointContext(Generic[T]):
    """The context that ``once.checkpoint(...)`` returns. Enter it once, with ``with`` or ``async with``."""

    def __init__(
        self, guard: Guard, keys: KeyReader, limits: Limits[T], flush: Flush[T], on_done: Flush[T] | None
    ) -> None:
        self._arguments = (guard, keys, limits, flush, on_done)
        self._is_async = any(handler_of(function).is_async for function in (flush, on_done) if function is not None)
        self._sink: Any = None

    def __enter__(self) -> "Checkpoint[T]":
        if self._is_async:
            raise TypeError("flush or on_done is a coroutine function: use `async with once.checkpoint(...)`")
        self._check_new()
        self._sink = sink = Checkpoint(*self._arguments)
        return sink

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._sink.close(error)
        except BaseException:
            self._sink.drop()  # an interrupt came before these were flushed: renew them no more
            raise

    async def __aenter__(self) -> "AsyncCheckpoint[T]":
        from onceward.batch.checkpoint.awaiting import AsyncCheckpoint

        self._check_new()
        self._sink = sink = AsyncCheckpoint(*self._arguments)
        return sink

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._sink.close(error)
        except BaseException:
            self._sink.drop()
            raise

    def _check_new(self) -> None:
        if self._sink is not None:
            raise RuntimeError("this once.checkpoint(...) was entered before: make a new one for each block")
