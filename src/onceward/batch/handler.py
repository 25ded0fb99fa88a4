"""The handler of a batch, and its options: what one call of it (``runner.py``) needs to know; and the threads in which handlers run."""

import os
import threading
from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar, copy_context
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Unpack, cast

from onceward.batch.outcomes import BatchOutcome, Reading
from onceward.claim.factory import GuardFactory, refuse_guarded
from onceward.claim.handler import handler_of
from onceward.core.arguments import check_count, check_hook
from onceward.core.policy import Options

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

Read = Callable[[Any], Reading]
Group = Callable[[Any], Hashable | None]


class BatchHandler:
    """A handler of records.

    Adapters make a batch directly and pass ``read(record)``, which reads a record; if it raises, the record is malformed. Any
    thread of the batch calls ``heard`` with each recorded outcome. If ``values`` is false, large results in S3 are not fetched. For the other arguments, see :meth:`Once.batch`.

    Attributes:
        typical: seconds per handler, a moving average.
    """

    def __init__(
        self,
        guards: GuardFactory,
        function: Callable[..., object],
        read: Read,
        *,
        name: str | None = None,
        concurrency: int = 1,
        group: Group | None = None,
        heard: Callable[[BatchOutcome], None] | None = None,
        values: bool = True,
        **options: Unpack[Options],
    ) -> None:
        check_count("concurrency", concurrency)
        if group is not None:
            check_hook("group", group)
        # A busy key is reported, and no call is answered from memory.
        refuse_guarded(function)
        self.guard, handler = guards.for_function(function, name, {**options, "on_busy": "raise", "cache": 0})
        self.name = self.guard.name
        self.read = read
        self.group = group
        self.heard = heard
        self.concurrency = concurrency
        self.values = values
        self.typical = 0.0  # seconds per handler, a moving average
        self.is_async = handler.is_async
        self.function = function
        self.turns = LoopTurns(concurrency)
        self.awaitable = awaitable(function, self.turns.in_thread)
        self.parameter = handler.parameter


P = ParamSpec("P")


def awaitable(
    function: Callable[P, object], in_thread: Callable[..., Awaitable[object]]
) -> Callable[P, Awaitable[object]]:
    """Return ``function`` as an awaitable one. A plain function runs ``in_thread``, because it may block."""
    if handler_of(function).is_async:
        return cast("Callable[P, Awaitable[object]]", function)

    def outcome(*args: P.args, **kwargs: P.kwargs) -> tuple[object, Exception | None]:
        try:
            return function(*args, **kwargs), None
        except (
            Exception
        ) as error:  # a future takes no StopIteration, and takes concurrent.futures' CancelledError for its own
            return None, error

    @wraps(function, updated=())
    async def call(*args: P.args, **kwargs: P.kwargs) -> object:
        value, error = cast("tuple[object, Exception | None]", await in_thread(outcome, *args, **kwargs))
        if error is not None:
            try:
                raise error
            finally:
                del error  # it holds this frame
        return await cast("Awaitable[object]", value) if hasattr(value, "__await__") else value

    return call


class HandlerThreads:
    """Threads that share the starting thread's work. You can wait for them even if interrupts come.

    An interrupted ``Thread.join`` takes its thread for dead (CPython below 3.13). An interrupted ``Event.wait`` may keep the
    event's lock for ever. A plain lock does neither.
    """

    def __init__(self) -> None:
        self._closed = False
        self._working: list[threading.Lock] = []  # one per running thread, released when it ends

    def start(self, count: int, work: Callable[[], None]) -> None:
        """Start up to ``count`` threads that call ``work`` in a copy of this context; fewer if the system has no more."""
        for _ in range(count):
            within = copy_context().run
            try:
                threading.Thread(target=within, args=(self._run, work), name="onceward-batch", daemon=True).start()
            except RuntimeError:
                return

    def join(self) -> None:
        """Wait for the threads that have begun. Those that begin later do nothing."""
        self._closed = True
        for working in list(self._working):
            with working:
                pass

    def _run(self, work: Callable[[], None]) -> None:
        working = threading.Lock()
        with working:
            self._working.append(working)
            if not self._closed:  # check after the append: join() sets it before it reads the list
                work()


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
