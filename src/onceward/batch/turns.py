"""The turns of handlers in event loops: how many run at once, and the threads of those that may block."""

import os
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

INSIDE: ContextVar[bool] = ContextVar("onceward_batch_inside", default=False)  # inside a handler that holds a turn
_THREADS: Final = 10_000  # per process, for all event loops; the turns limit the real number


class LoopTurns:
    """The turns of one batch: ``concurrency`` for all its calls in one event loop."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._gates: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}
        self._pools: dict[int, ThreadPoolExecutor] = {}  # by process: a pool does not survive a fork

    def gate(self) -> "asyncio.Semaphore":
        """Return the semaphore of the running event loop."""
        import asyncio

        loop = asyncio.get_running_loop()
        gate = self._gates.get(loop)
        if gate is None:
            for other in [other for other in list(self._gates) if other.is_closed()]:
                self._gates.pop(other, None)
            self._gates[loop] = gate = asyncio.Semaphore(self._concurrency)
        return gate

    async def in_thread(self, function: Callable[..., object], *args: object, **kwargs: object) -> object:
        """Call ``function`` in a thread, in a copy of this context."""
        import asyncio

        run = partial(copy_context().run, function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._pool(), run)

    def _pool(self) -> "ThreadPoolExecutor":
        pool = self._pools.get(os.getpid())
        if pool is None:
            from concurrent.futures import ThreadPoolExecutor

            pool = self._pools.setdefault(os.getpid(), ThreadPoolExecutor(_THREADS, "onceward-batch"))
        return pool
