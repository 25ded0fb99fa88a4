"""Like ``blocking.py``, for coroutines."""

import asyncio
from contextvars import ContextVar
from functools import partial
from typing import Generic, TypeVar

from onceward.batch.checkpoint.blocking import ITSELF, Added, Flush, log_on_done
from onceward.batch.checkpoint.state import BufferedItem, CheckpointState
from onceward.batch.threads import awaitable
from onceward.claim.called import Call, refuse_not_begun
from onceward.claim.replays import CallOutcome
from onceward.claim.running import run_under_async
from onceward.core.drivers import settle_async
from onceward.errors import OncewardError, ResultUnavailable

T = TypeVar("T")
_FLUSHING: ContextVar[object] = ContextVar("onceward_flushing", default=None)  # also in the flush's tasks and threads


class AsyncCheckpoint(Generic[T]):
    """Like :class:`Checkpoint`, within ``async with once.checkpoint(...)``, for tasks of one event loop."""

    def __init__(self, state: CheckpointState[T], flush: Flush[T], on_done: Flush[T] | None) -> None:
        self._state = state
        self._function = awaitable(flush, asyncio.to_thread)
        self._on_done = None if on_done is None else awaitable(on_done, asyncio.to_thread)
        self._lock = asyncio.Lock()
        self._flushing: object = None  # marks the running flush
        self._watcher: asyncio.Task[None] | None = None

    async def add(self, item: T) -> Added:
        """Like :meth:`Checkpoint.add`, but async."""
        self._refuse_itself()
        with self._state.observers:
            return await self._add(item)

    async def _add(self, item: T) -> Added:
        await self._lock.acquire()  # not `async with`, which an interrupt can leave without a release
        try:
            self._state.check_open()
            item_key = self._state.item_key(item)
            if item_key is None:
                return "buffered"
            if self._state.crowded(item_key.size):
                await self._flush()
            try:
                claim = await self._state.guard.enter_async(item_key.key, item_key.fingerprint, value=False)
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
                await self._flush()
            elif first and self._state.seconds_left is not None:
                self._watch_soon()
        finally:
            self._lock.release()
        return "added"

    async def flush(self) -> None:
        """Like :meth:`Checkpoint.flush`, but async."""
        self._refuse_itself()
        with self._state.observers:
            await self._lock.acquire()
            try:
                self._state.check_open()
                await self._flush()
            finally:
                self._lock.release()

    async def close(self, error: BaseException | None) -> None:
        """Like :meth:`Checkpoint.close`, but async."""
        if error is not None and self._state.inherited:
            return
        if isinstance(error, GeneratorExit):  # a coroutine that is being closed must not await
            self._state.closed = True
            self._state.drop(self._state.take())
            return
        self._refuse_itself()
        self._state.closed = True
        with self._state.observers:
            async with self._lock:
                if self._watcher is not None:
                    self._watcher.cancel()  # it only waits (for its time or the lock), so no flush is cut off
                if error is None:
                    self._state.check()
                    await self._flush()
                else:
                    self._state.note(error)
                    held = self._state.take()
                    await settle_async(lambda: self._state.giving_back(held, error), self._state.guard.store)

    def _refuse_itself(self) -> None:
        self._state.check_own()
        if self._flushing is not None and self._flushing is _FLUSHING.get():
            raise OncewardError(ITSELF)

    async def _flush(self) -> None:
        """Flush all held items, and end their claims as the flush ended. The lock is held."""
        self._flushing = mark = object()
        before = _FLUSHING.set(mark)
        held: list[BufferedItem[T]] = []
        try:
            if held := self._state.take():
                await self._write(held)
        except BaseException as error:
            self._state.cut_short(held, error)
            raise
        finally:
            self._flushing = None
            _FLUSHING.reset(before)

    async def _write(self, held: list[BufferedItem[T]]) -> None:
        state, store = self._state, self._state.guard.store
        lost = state.lost(held)
        if lost is not None:
            await settle_async(lambda: state.giving_back(held, lost), store)
            raise lost
        call = Call(partial(self._function, [one.item for one in held]))

        async def leave(_: None, call: Call) -> BaseException | None:
            return await settle_async(lambda: state.ending(held, call), store)

        failure = await run_under_async(None, call, leave)
        if failure is not None:
            raise failure
        items, trouble = state.recorded(held)
        if self._on_done is not None and items:
            try:
                refuse_not_begun(self._on_done, await self._on_done(items))
            except Exception as error:
                log_on_done(error)
        if trouble is not None:
            raise trouble

    def _watch_soon(self) -> None:
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch(), name="onceward-checkpoint")

    async def _watch(self) -> None:
        while (seconds_left := self._state.seconds_left) is not None:
            await asyncio.sleep(seconds_left)
            async with self._lock:
                if self._state.seconds_left == 0 and not self._state.closed and not self._state.failed:
                    try:
                        await self._flush()
                    except BaseException as error:
                        self._state.fail(error, is_raised=False)
                        if not isinstance(error, Exception):
                            raise
