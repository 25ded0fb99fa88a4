"""Many deliveries at once: all are claimed together, run one by one or side by side, and recorded together.

A failure of one record harms no other. What is finished is recorded after :data:`settling.LINGER` seconds at the latest, also
while another handler runs, so a process that dies takes along only what has just ended; its claims lapse as always.
"""

import os
import sys
from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Unpack

from onceward.batch.outcomes import BatchOutcome, Item, Reading, Status
from onceward.batch.recorder import AsyncSettler, Settler
from onceward.batch.runner import Run
from onceward.batch.tasks import closed, joined
from onceward.batch.threads import Helpers, awaitable
from onceward.claim import called
from onceward.claim.arguments import check_hook
from onceward.claim.called import OVER, RAISED, RETURNED, Call
from onceward.claim.factory import GuardFactory, refuse_guarded
from onceward.claim.held import HeldClaim
from onceward.claim.running import run_under, run_under_async
from onceward.core import many
from onceward.core.drivers import drive, drive_async, settle, settle_async
from onceward.core.policy import Options
from onceward.errors import OncewardError

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor


__all__ = ["Batch", "BatchOutcome", "Reading", "Status"]

Read = Callable[[Any], Reading]
Group = Callable[[Any], Hashable | None]
_INSIDE: ContextVar[bool] = ContextVar("onceward_batch_inside", default=False)  # in a handler that has its turn
_THREADS: Final = 10_000  # in all event loops of a process; the turns bound how many there are
_NOT_HERE: Final = "is a coroutine function: await batch.run_async(...) instead of batch.run(...)"


class Batch:
    """A handler for batches of records, from ``once.batch(...)``. One may serve any number of threads and event loops.

    Adapters make one themselves, with ``read(record)`` to read records in their own way; what it raises makes that record
    malformed. Without ``values`` a recorded result that is kept elsewhere is not fetched. The other arguments are those of :meth:`Once.batch`.
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
        on_outcome: Callable[[BatchOutcome], None] | None = None,
        values: bool = True,
        **options: Unpack[Options],
    ) -> None:
        if type(concurrency) is not int or concurrency < 1:
            raise ValueError(f"concurrency={concurrency!r}: give how many handlers may run at a time, at least 1")
        for option, hook in (("group", group), ("on_outcome", on_outcome)):
            if hook is not None:
                check_hook(option, hook)
        # Who is busy is reported, and nobody is answered from memory.
        refuse_guarded(function)
        self.guard, handler = guards.for_function(function, name, {**options, "on_busy": "raise", "cache": 0})
        self.name = self.guard.name
        self.read = read
        self.group = group
        self.on_outcome = on_outcome
        self.concurrency = concurrency
        self.values = values
        self.typical = 0.0  # seconds that a handler takes, a moving average
        self.is_async = handler.is_async
        self._function = function
        self._awaitable = awaitable(function, self._in_thread)
        self._parameter = handler.parameter
        self._gates: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}
        self._pools: dict[int, ThreadPoolExecutor] = {}  # by process, for one does not survive a fork

    # --- blocking ---------------------------------------------------------------------------------------------------

    def run(self, records: Sequence[Any], *, time_left: float | None = None) -> list[BatchOutcome]:
        """Handle ``records``, in this thread, or in ``concurrency`` threads of which this is one.

        Args:
            records: any number; each 100 are claimed together.
            time_left: seconds until this process will be stopped, such as a Lambda function's remaining time. What cannot
                begin in time is deferred, and no lease outlives it by more than the store's own imprecision. None is no
                limit.

        Returns:
            What became of each record, in their order. Nothing that goes wrong with a record is raised.

        Raises:
            TypeError, ValueError: the handler is a coroutine function, or ``time_left`` is no number of seconds.
        """
        if self.is_async:
            raise TypeError(f"{self.name} {_NOT_HERE}")
        run = Run(self, records, time_left)
        store = self.guard.store
        for chunk in run.chunks():
            bids = run.bids(chunk)
            try:
                try:
                    run.claimed(chunk, bids, drive(many.claim_many(store, bids), store) if bids else [])
                except BaseException:
                    _ignoring_errors(lambda bids=bids: drive(many.abandon_many(store, bids), store))  # type: ignore[misc]  # a default
                    raise
                drive(run.fetching(), store)
                self._work_through(run)
            except BaseException as error:
                run.note(error)
                raise
            finally:
                _ignoring_errors(lambda: settle(run.giving_back, store))
        return run.finished()

    def _work_through(self, run: Run) -> None:
        settler = Settler(run, self.guard.store)
        helpers = Helpers()
        interrupts: list[BaseException] = []

        def work() -> None:
            try:
                self._work(run, settler)
            except BaseException as interrupt:  # raised in the caller's thread
                run.stop()
                interrupts.append(interrupt)

        try:
            helpers.start(min(self.concurrency, run.width) - 1, work)
            self._work(run, settler)
            helpers.join()
        except BaseException:
            run.stop()
            if not run.inherited:  # or they are in the parent
                helpers.join()  # after what they are at; a second interrupt leaves them alone
                run.abandon()
            raise
        finally:
            try:
                try:
                    settler.close()
                except BaseException:
                    settler.close()
                    raise
            except BaseException:  # a second interrupt came before the first was dealt with
                settler.close()
                raise
        if interrupts:
            raise interrupts[0]

    def _work(self, run: Run, settler: Settler) -> None:
        while (item := run.next()) is not None:
            call = Call(self._bound(self._function, item))
            try:
                run_under(item.held, call, partial(self._ended, run, item))
            except BaseException as error:
                if OVER not in call or error is not call.get(RAISED) or RETURNED in call or not _is_handlers(error):
                    raise  # an interrupt
            settler.settle_soon()

    def _bound(self, function: Callable[..., object], item: Item) -> Callable[[], object]:
        args, kwargs = (item.args, {}) if self._parameter is None else self._parameter.fill(item.held, item.args, {})
        return partial(function, *args, **kwargs)

    def _ended(self, run: Run, item: Item, claim: HeldClaim, call: Call) -> None:
        """Take in how a handler ended. It may be called anew when it was interrupted."""
        failure = called.failure(call)
        if claim.inherited and failure is not None:
            raise failure  # a forked child has no outcomes
        claim.check_own()
        if failure is None:
            run.handled(item, call[RETURNED], None)
        elif isinstance(failure, Exception):
            run.handled(item, None, failure)
        else:
            run.dropped(item)
        call[OVER] = True

    # --- awaiting ---------------------------------------------------------------------------------------------------

    async def run_async(self, records: Sequence[Any], *, time_left: float | None = None) -> list[BatchOutcome]:
        """As :meth:`run`, with ``concurrency`` tasks; a handler that is no coroutine function is called in threads.

        All calls under way in one event loop share the bound, but for those out of a batch's handler, which holds a turn
        already: such a call has a bound of its own.
        """
        run = Run(self, records, time_left)
        store = self.guard.store
        for chunk in run.chunks():
            bids = run.bids(chunk)
            try:
                run.claimed(chunk, bids, await drive_async(many.claim_many(store, bids), store) if bids else [])
            except GeneratorExit:  # a coroutine that is closed may not await any more
                raise
            except BaseException:
                await _ignoring_errors_async(
                    lambda bids=bids: settle_async(lambda: many.abandon_many(store, bids), store)  # type: ignore[misc]  # a default
                )
                raise
            try:
                await drive_async(run.fetching(), store)
                await self._work_through_async(run)
            except GeneratorExit:  # as above
                raise
            except BaseException as error:
                run.note(error)
                run.abandon()
                await _ignoring_errors_async(lambda: settle_async(run.giving_back, store))
                raise
            await _ignoring_errors_async(lambda: settle_async(run.giving_back, store))
        return run.finished()

    async def _work_through_async(self, run: Run) -> None:
        import asyncio

        settler = AsyncSettler(run, self.guard.store)
        gate = asyncio.Semaphore(self.concurrency) if _INSIDE.get() else self._gate()
        tasks: list[asyncio.Task[None]] = []
        met: list[BaseException] = []
        try:
            try:
                try:
                    for _ in range(min(self.concurrency, run.width)):
                        tasks.append(asyncio.create_task(self._work_async(run, settler, gate)))  # noqa: PERF401 - an interrupt keeps those that were made
                    await joined(run, tasks, met)
                    await settler.close()
                except BaseException as error:
                    await closed(run, tasks, met, settler, error)
                    raise
            except BaseException as error:  # a second interrupt came before the first was dealt with
                await closed(run, tasks, met, settler, error)
                raise
        except GeneratorExit:
            run.stop()
            raise
        for interrupt in (*met, *(task.exception() for task in tasks if not task.cancelled())):
            if interrupt is not None:
                raise interrupt
        for task in tasks:
            task.result()

    async def _work_async(self, run: Run, settler: AsyncSettler, gate: "asyncio.Semaphore") -> None:
        import asyncio

        while run.more:
            await gate.acquire()  # not `async with`, which an interrupt can leave without a release
            try:
                item = run.next()
                if item is None:
                    return
                call = Call(self._bound(self._awaitable, item))
                _INSIDE.set(True)
                try:
                    await run_under_async(item.held, call, partial(self._ended_async, run, item))
                except BaseException as error:
                    task = asyncio.current_task()
                    alone = _is_handlers(error) and not (_is_cancellation(error) and task and task.cancelling())
                    if OVER not in call or error is not call.get(RAISED) or RETURNED in call or not alone:
                        raise
                finally:
                    _INSIDE.set(False)
            finally:
                gate.release()
            settler.settle_soon()

    async def _ended_async(self, run: Run, item: Item, claim: HeldClaim, call: Call) -> None:
        self._ended(run, item, claim, call)

    async def _in_thread(self, function: Callable[..., object], *args: object, **kwargs: object) -> object:
        import asyncio  # as above

        run = partial(copy_context().run, function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._pool(), run)

    def _gate(self) -> "asyncio.Semaphore":
        import asyncio

        loop = asyncio.get_running_loop()
        gate = self._gates.get(loop)
        if gate is None:
            for other in [other for other in list(self._gates) if other.is_closed()]:
                self._gates.pop(other, None)
            self._gates[loop] = gate = asyncio.Semaphore(self.concurrency)
        return gate

    def _pool(self) -> "ThreadPoolExecutor":
        pool = self._pools.get(os.getpid())
        if pool is None:
            from concurrent.futures import ThreadPoolExecutor

            pool = self._pools.setdefault(os.getpid(), ThreadPoolExecutor(_THREADS, "onceward-batch"))
        return pool


def _is_handlers(error: BaseException) -> bool:
    """Tell whether an exception out of a handler is its own failure, and no interrupt."""
    return isinstance(error, Exception) or _is_cancellation(error)


def _is_cancellation(interrupt: BaseException) -> bool:
    """Tell whether something in a handler was cancelled; unless its whole task was, that is no business of other records."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(interrupt, asyncio.CancelledError)


def _ignoring_errors(act: Callable[[], object]) -> None:
    """Give back what can be given back; what cannot be is claimed to the end of its lease."""
    try:
        act()
    except OncewardError:
        pass


async def _ignoring_errors_async(act: Callable[[], Any]) -> None:
    try:
        await act()
    except OncewardError:
        pass
