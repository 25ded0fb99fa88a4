"""Records how handlers ended: many together, each about :data:`LINGER` after its end, while other handlers run."""

import os
import threading
import time
from typing import TYPE_CHECKING, Final

from onceward.batch.outcomes import Item
from onceward.batch.runner import Run
from onceward.claim.heartbeat import started
from onceward.core.drivers import drive, settle, settle_async
from onceward.stores.contract import Store

if TYPE_CHECKING:
    import asyncio

LINGER: Final = 0.02  # seconds that an end may wait for others
IDLE: Final = 50  # ticks without a batch until the ticker ends; the next batch starts another


class Ticker:
    """Records pending ends of this process's sync batches, in one thread each. A batch shorter than a tick costs a dict entry."""

    def __init__(self) -> None:
        self._recorders: dict[int, Recorder] = {}
        self._lock = threading.RLock()  # reentrant: a signal handler may run a batch inside another one
        self._running = False

    def watch(self, recorder: "Recorder") -> None:
        """Let ``recorder`` record what is pending at each tick."""
        self._recorders[id(recorder)] = recorder
        if not self._running:
            self._start()

    def _start(self) -> None:
        with self._lock:
            if not self._running:
                # If no thread starts, all is recorded at the end, and the next batch tries again.
                self._running = started("onceward-recorder", self._run)

    def forget(self, recorder: "Recorder") -> None:
        """Stop calling ``recorder``."""
        self._recorders.pop(id(recorder), None)

    def _run(self) -> None:
        idle = 0
        while True:
            time.sleep(LINGER)
            recorders = list(self._recorders.values())
            for recorder in recorders:
                recorder.tick()
            idle = 0 if recorders else idle + 1
            if idle > IDLE:
                with self._lock:
                    self._running = bool(self._recorders)
                    if not self._running:
                        return


TICKER = Ticker()


def _forked() -> None:
    global TICKER  # the parent's threads and locks do not exist in the child
    TICKER = Ticker()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Recorder:
    """Records the ends of one batch: in another thread while handlers run, and the rest in the caller's thread."""

    def __init__(self, run: Run, store: Store) -> None:
        self._run, self._store = run, store
        self._busy = threading.Lock()  # held while recording; close() uses it, not join(): see HandlerThreads
        self._watched = False
        # Being recorded. If a recording thread dies, close() records its items.
        self._items: list[Item] = []

    def record_soon(self) -> None:
        """Record what is pending at the next tick, if more items are left to run."""
        if not self._watched and self._run.order.more:
            self._watched = True
            TICKER.watch(self)

    def tick(self) -> None:
        """Record what is pending now."""
        if not self._run.order.handled or not self._busy.acquire(blocking=False):
            return
        if not started("onceward-recorder", self._record):
            self._busy.release()  # no thread started: close() records what is pending

    def close(self) -> None:
        """Record what is left. After an interrupt it may be called again."""
        if self._run.order.inherited:
            return
        TICKER.forget(self)
        with self._busy:
            settle(lambda: self._run.recording(self._run.order.take(self._items)), self._store)

    def _record(self) -> None:
        try:
            drive(self._run.recording(self._run.order.take(self._items)), self._store)
            self._items = [item for item in self._items if item.outcome is None]
        finally:
            self._busy.release()
        self._run.report.tell()


class AsyncRecorder:
    """Like :class:`Recorder`, in a task.

    Attributes:
        tasks: those in which the handlers run.
        interrupts: what has stopped them; the batch raises it after recording.
    """

    def __init__(self, run: Run, store: Store) -> None:
        import asyncio

        self.tasks: list[asyncio.Task[None]] = []
        self.interrupts: list[BaseException] = []
        self._run, self._store = run, store
        self._closed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._items: list[Item] = []  # as in Recorder

    def record_soon(self) -> None:
        """Record what is pending within :data:`LINGER`."""
        if self._task is None or self._task.done():
            if self._task is not None:
                self._hear(self._task)
            import asyncio

            self._task = asyncio.create_task(self._record())

    async def close(self) -> None:
        """Record what is left."""
        import asyncio

        self._closed.set()
        try:
            if self._task is not None:
                await asyncio.wait((self._task,))
                self._hear(self._task)
        except GeneratorExit:  # a coroutine that is being closed must not await
            raise
        except BaseException:
            await self._rest()
            raise
        await self._rest()

    async def join(self) -> None:
        """Wait for :attr:`tasks`. An interrupt stops and cancels them."""
        import asyncio

        while waiting := [task for task in self.tasks if not task.done()]:
            try:
                await asyncio.wait(waiting)
            except GeneratorExit:  # as above
                raise
            except BaseException as error:
                self._stop(error)

    async def cut_short(self, error: BaseException) -> None:
        """Record what is done after ``error``. It may be called again, after an interrupt or after all is recorded."""
        self._run.order.stop()
        if isinstance(error, GeneratorExit):  # as above
            return
        self._stop(error)
        await self.join()
        await self.close()

    def _stop(self, error: BaseException) -> None:
        self.interrupts.append(error)
        self._run.order.stop()
        for task in self.tasks:
            task.cancel()

    async def _rest(self) -> None:
        await settle_async(lambda: self._run.recording(self._run.order.take(self._items)), self._store)

    def _hear(self, task: "asyncio.Task[None]") -> None:
        """Keep the time limit that stopped the task."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):  # a KeyboardInterrupt ends the loop by itself
            self.interrupts.append(error)

    async def _record(self) -> None:
        import asyncio

        while self._run.order.handled:
            try:
                async with asyncio.timeout(LINGER):  # wait_for() of Python 3.11 can swallow a cancellation
                    await self._closed.wait()
            except TimeoutError:
                await self._rest()  # completes even while the event loop shuts down
                self._items = [item for item in self._items if item.outcome is None]
                self._run.report.tell()
            else:
                return
