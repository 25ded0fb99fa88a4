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
        self._settlers: dict[int, Settler] = {}
        self._lock = threading.RLock()  # reentrant: a signal handler may run a batch inside another one
        self._running = False

    def watch(self, settler: "Settler") -> None:
        """Let ``settler`` record what is pending at each tick."""
        self._settlers[id(settler)] = settler
        if not self._running:
            self._start()

    def _start(self) -> None:
        with self._lock:
            if not self._running:
                # If no thread starts, all is recorded at the end, and the next batch tries again.
                self._running = started("onceward-settler", self._run)

    def forget(self, settler: "Settler") -> None:
        """Stop calling ``settler``."""
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
    """Records the ends of one batch: in another thread while handlers run, and the rest in the caller's thread."""

    def __init__(self, run: Run, store: Store) -> None:
        self._run, self._store = run, store
        self._busy = threading.Lock()  # held while recording; close() uses it, not join(): see threads.Helpers
        self._watched = False
        # Being recorded. If a recording thread dies, close() records its items.
        self._items: list[Item] = []

    def settle_soon(self) -> None:
        """Record what is pending at the next tick, if more items are left to run."""
        if not self._watched and self._run.more:
            self._watched = True
            TICKER.watch(self)

    def tick(self) -> None:
        """Record what is pending now."""
        if not self._run.pending or not self._busy.acquire(blocking=False):
            return
        if not started("onceward-settler", self._settle):
            self._busy.release()  # no thread started: close() records what is pending

    def close(self) -> None:
        """Record what is left. After an interrupt it may be called again."""
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
    """Like :class:`Settler`, in a task."""

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
        except GeneratorExit:  # a coroutine that is being closed must not await
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
        """Keep the time limit that stopped the task; close() raises it."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):  # a KeyboardInterrupt ends the loop by itself
            self._interrupt = error

    async def _settle(self) -> None:
        import asyncio

        while self._run.pending:
            try:
                await asyncio.wait_for(self._closed.wait(), LINGER)
            except TimeoutError:
                await self._rest()  # completes even while the event loop shuts down
                self._items = [item for item in self._items if item.outcome is None]
                self._run.tell()
            else:
                return
