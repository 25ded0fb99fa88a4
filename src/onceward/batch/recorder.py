"""Recording how handlers ended: many together, and none much later than :data:`LINGER` while the others still run."""

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

LINGER: Final = 0.02  # seconds that an end may wait for others to be recorded with
IDLE: Final = 50  # ticks without a batch after which the ticker ends; the next batch starts another


class Ticker:
    """Has the blocking batches of this process recorded in between, each by a thread of its own when something is pending.

    A batch that is over before a tick pays one dict entry.
    """

    def __init__(self) -> None:
        self._settlers: dict[int, Settler] = {}
        self._lock = threading.RLock()  # a signal handler may run a batch where it interrupts another one
        self._running = False

    def watch(self, settler: "Settler") -> None:
        """Have ``settler`` record what is pending, tick by tick."""
        self._settlers[id(settler)] = settler
        if not self._running:
            self._start()

    def _start(self) -> None:
        with self._lock:
            if not self._running:
                # Without a thread all is recorded at the end, and the next batch tries again.
                self._running = started("onceward-settler", self._run)

    def forget(self, settler: "Settler") -> None:
        """Have it record no more."""
        self._settlers.pop(id(settler), None)

    def _run(self) -> None:
        idle = 0
        while True:
            time.sleep(LINGER)
            settlers = list(self._settlers.values())
            for settler in settlers:
                settler.tick()
            idle = 0 if settlers else idle + 1
            if idle > IDLE:
                with self._lock:
                    self._running = bool(self._settlers)
                    if not self._running:
                        return


TICKER = Ticker()


def _forked() -> None:
    global TICKER  # the parent's threads and locks do not exist in the child
    TICKER = Ticker()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Settler:
    """Records the ends of one batch: while handlers run, out of another thread, and what is left in the caller's."""

    def __init__(self, run: Run, store: Store) -> None:
        self._run, self._store = run, store
        self._busy = threading.Lock()  # whoever records has it; and not join(), see threads.Helpers
        self._watched = False
        # What is being recorded; what a thread leaves here when it dies is recorded at the end.
        self._items: list[Item] = []

    def settle_soon(self) -> None:
        """Record what is pending at the next tick, if there is more to run meanwhile."""
        if not self._watched and self._run.more:
            self._watched = True
            TICKER.watch(self)

    def tick(self) -> None:
        """Record what is pending now."""
        if not self._run.pending or not self._busy.acquire(blocking=False):
            return
        if not started("onceward-settler", self._settle):
            self._busy.release()  # without a thread what is pending is recorded at the end

    def close(self) -> None:
        """Record what is left. It may be called anew when it was interrupted."""
        if self._run.inherited:
            return
        TICKER.forget(self)
        with self._busy:
            settle(lambda: self._run.settling(self._run.take(self._items)), self._store)

    def _settle(self) -> None:
        try:
            drive(self._run.settling(self._run.take(self._items)), self._store)
            self._items = [item for item in self._items if item.outcome is None]
        finally:
            self._busy.release()
        self._run.tell()


class AsyncSettler:
    """As :class:`Settler`, in a task."""

    def __init__(self, run: Run, store: Store) -> None:
        import asyncio

        self._run, self._store = run, store
        self._closed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._items: list[Item] = []  # as in Settler
        self._interrupt: Exception | None = None

    def settle_soon(self) -> None:
        """Record what is pending within :data:`LINGER`."""
        if self._task is None or self._task.done():
            if self._task is not None:
                self._hear(self._task)
            import asyncio

            self._task = asyncio.create_task(self._settle())

    async def close(self) -> None:
        """Record what is left."""
        import asyncio

        self._closed.set()
        try:
            if self._task is not None:
                await asyncio.wait((self._task,))
                self._hear(self._task)
        except GeneratorExit:  # it is closed, and may not await any more
            raise
        except BaseException:
            await self._rest()
            raise
        await self._rest()
        if self._interrupt is not None:
            raise self._interrupt

    async def _rest(self) -> None:
        await settle_async(lambda: self._run.settling(self._run.take(self._items)), self._store)

    def _hear(self, task: "asyncio.Task[None]") -> None:
        """Keep the time limit that struck a task, for who waits for the batch."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):  # a KeyboardInterrupt has ended the loop by itself
            self._interrupt = error

    async def _settle(self) -> None:
        import asyncio

        while self._run.pending:
            try:
                await asyncio.wait_for(self._closed.wait(), LINGER)
            except TimeoutError:
                await self._rest()  # to its end, also when the event loop is being shut down
                self._items = [item for item in self._items if item.outcome is None]
                self._run.tell()
            else:
                return
