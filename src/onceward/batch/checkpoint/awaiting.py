"""Like ``blocking.py``, for coroutines."""

import asyncio
from typing import TypeVar

from onceward.batch.checkpoint.sink import Added, Sink
from onceward.batch.handler import awaitable
from onceward.claim.called import run_under_async
from onceward.core.drivers import Steps, settle_async
from onceward.core.whole import CALLS, drive_whole_async

T = TypeVar("T")
R = TypeVar("R")


class AsyncCheckpoint(Sink[T]):
    """Like :class:`Checkpoint`, within ``async with once.checkpoint(...)``, for tasks of one event loop."""

    _watcher: asyncio.Task[None] | None = None

    def _begin(self) -> None:
        self._enter, self._settle, self._run = self._guard.enter_async, settle_async, run_under_async
        self._function = awaitable(self._function, asyncio.to_thread)
        self._on_done = None if self._on_done is None else awaitable(self._on_done, asyncio.to_thread)
        self._lock = asyncio.Lock()

    async def add(self, item: T) -> Added:
        """Like :meth:`Checkpoint.add`, but async."""
        return await self._locked(self._add(item))

    async def flush(self) -> None:
        """Like :meth:`Checkpoint.flush`, but async."""
        await self._locked(self._flush_now())

    async def close(self, error: BaseException | None) -> None:
        """Like :meth:`Checkpoint.close`, but async."""
        if error is not None and self.inherited:
            return
        if isinstance(error, GeneratorExit):  # a coroutine that is being closed must not await
            self._closed = True
            self.drop()
            return
        self._check_outside()
        self._closed = True
        await self._locked(self._close(error))

    async def _locked(self, steps: Steps[R]) -> R:
        self._check_outside()
        with self._observers:
            await self._lock.acquire()  # not `async with`, which an interrupt can leave without a release
            try:
                return await drive_whole_async(steps, CALLS)
            finally:
                self._lock.release()

    def _stop_watching(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()  # it only waits (for its time or the lock), so no flush is cut off

    def _watch_soon(self) -> None:
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch(), name="onceward-checkpoint")

    async def _watch(self) -> None:
        while (seconds_left := self._seconds_left) is not None:
            await asyncio.sleep(seconds_left)
            async with self._lock:
                if self._seconds_left == 0 and not self._closed and self._failure is None:
                    try:
                        await drive_whole_async(self._flush(), CALLS)
                    except BaseException as error:
                        self._fail(error, is_raised=False)
                        if not isinstance(error, Exception):
                            raise
