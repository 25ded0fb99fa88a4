"""Handles many records at once: claims them together, runs them one by one or in parallel, and records them together.

A failed record does not affect the others. A finished record is written within :data:`recorder.LINGER` seconds, even while
other handlers run. So a process that dies loses only what has just ended; its claims lapse as usual.
"""

import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from onceward.batch.handler import INSIDE, BatchHandler, HandlerThreads
from onceward.batch.outcomes import BatchOutcome, Item, Reading, Status
from onceward.batch.recorder import AsyncRecorder, Recorder
from onceward.batch.runner import Run
from onceward.claim.called import OVER, RAISED, RETURNED, Call, run_under, run_under_async
from onceward.claim.held import HeldClaim
from onceward.core import many
from onceward.core.drivers import Steps, drive, drive_async, settle, settle_async
from onceward.core.whole import CALLS, drive_whole, drive_whole_async
from onceward.errors import OncewardError

if TYPE_CHECKING:
    import asyncio

__all__ = ["Batch", "BatchOutcome", "Reading", "Status"]

Function = Callable[..., object]
_NOT_HERE: Final = "is a coroutine function: await batch.run_async(...) instead of batch.run(...)"


class Batch(BatchHandler):
    """A handler for batches of records, from ``once.batch(...)``. Any number of threads and event loops can share one."""

    def _handle(self, run: Run, ask: Function, settle_: Function, work_through: Function) -> Steps[list[BatchOutcome]]:
        """Handle all chunks. Yields calls: of functions that block, or whose results are awaited."""
        store = self.guard.store
        for chunk in run.chunks():
            bids = run.bids(chunk)
            try:
                try:
                    run.claimed(chunk, bids, (yield partial(ask, many.claim_many(store, bids), store)))
                    run.report.tell()
                except GeneratorExit:  # a coroutine that is being closed must not await
                    raise
                except BaseException:
                    with suppress(OncewardError):  # what is not given back stays claimed to the end of its lease
                        yield partial(settle_, partial(many.abandon_many, store, bids), store)
                    raise
                yield partial(ask, run.fetching(), store)
                yield partial(work_through, run)
            except GeneratorExit:  # as above
                raise
            except BaseException as error:
                run.note(error)
                run.abandon()
                yield from self._give_back(run, settle_)
                raise
            yield from self._give_back(run, settle_)
        return run.report.finished(run.items)

    def _give_back(self, run: Run, settle_: Function) -> Steps[None]:
        try:
            with suppress(OncewardError):
                yield partial(settle_, run.giving_back, self.guard.store)
        except BaseException as interrupt:
            run.note(interrupt)
            raise
        finally:
            run.report.tell()

    # --- blocking ---------------------------------------------------------------------------------------------------

    def run(self, records: Sequence[Any], *, time_left: float | None = None) -> list[BatchOutcome]:
        """Handle ``records`` in ``concurrency`` threads, one of which is this thread.

        Args:
            records: any number; they are claimed in groups of 100, with ``on_lapse="park"`` of ``concurrency``.
            time_left: seconds until this process is stopped, such as a Lambda function's remaining time. Records that
                cannot begin in time are deferred. No lease outlives this time by more than the store's imprecision. None
                means no limit.

        Returns:
            The outcome of each record, in order. A record's error is in its outcome and is never raised.

        Raises:
            TypeError, ValueError: the handler is a coroutine function, or ``time_left`` is not a number of seconds.
        """
        if self.is_async:
            raise TypeError(f"{self.name} {_NOT_HERE}")
        return drive_whole(self._handle(Run(self, records, time_left), drive, settle, self._work_through), CALLS)

    def _work_through(self, run: Run) -> None:
        recorder = Recorder(run, self.guard.store)
        threads = HandlerThreads()
        interrupts: list[BaseException] = []

        def work() -> None:
            try:
                self._work(run, recorder)
            except BaseException as interrupt:  # raised in the caller's thread
                run.order.stop()
                interrupts.append(interrupt)

        try:
            threads.start(min(self.concurrency, run.order.width) - 1, work)
            self._work(run, recorder)
            threads.join()
        except BaseException:
            run.order.stop()
            if not run.order.inherited:  # in a forked child, the threads are in the parent
                threads.join()  # they finish their current item; a second interrupt stops this wait
            raise
        finally:
            try:
                try:
                    recorder.close()
                except BaseException:
                    recorder.close()
                    raise
            except BaseException:  # a second interrupt, before the first was handled
                recorder.close()
                raise
        if interrupts:
            raise interrupts[0]

    def _work(self, run: Run, recorder: Recorder) -> None:
        while (item := run.order.next()) is not None:
            call = Call(self._bind(self.function, item))
            try:
                run_under(item.held, call, partial(self._leave, run, item))
            except BaseException as error:
                if not _is_handlers(call, error):
                    raise
            recorder.record_soon()

    def _bind(self, function: Function, item: Item) -> Callable[[], object]:
        args, kwargs = (item.args, {}) if self.parameter is None else self.parameter.fill(item.held, item.args, {})
        return partial(function, *args, **kwargs)

    def _leave(self, run: Run, item: Item, claim: HeldClaim, call: Call) -> None:
        drive(run.leaving(item, claim, call), self.guard.store)

    # --- awaiting ---------------------------------------------------------------------------------------------------

    async def run_async(self, records: Sequence[Any], *, time_left: float | None = None) -> list[BatchOutcome]:
        """Like :meth:`run`, with ``concurrency`` tasks. A handler that is no coroutine function runs in threads.

        All running calls in one event loop share the limit. A call from a batch's handler has its own limit, because
        that handler already counts.
        """
        run = Run(self, records, time_left)
        return await drive_whole_async(self._handle(run, drive_async, settle_async, self._work_through_async), CALLS)

    async def _work_through_async(self, run: Run) -> None:
        import asyncio

        recorder = AsyncRecorder(run, self.guard.store)
        gate = asyncio.Semaphore(self.concurrency) if INSIDE.get() else self.turns.gate()
        try:
            try:
                for _ in range(min(self.concurrency, run.order.width)):
                    recorder.tasks.append(asyncio.create_task(self._work_async(run, recorder, gate)))
                await recorder.join()
                await recorder.close()
            except BaseException as error:
                await recorder.cut_short(error)
                raise
        except BaseException as error:  # a second interrupt, before the first was handled
            await recorder.cut_short(error)
            raise
        tasks = recorder.tasks
        for interrupt in (*recorder.interrupts, *(task.exception() for task in tasks if not task.cancelled())):
            if interrupt is not None:
                raise interrupt
        for task in tasks:
            task.result()

    async def _work_async(self, run: Run, recorder: AsyncRecorder, gate: "asyncio.Semaphore") -> None:
        import asyncio

        while run.order.more:
            await gate.acquire()  # not `async with`, which an interrupt can leave without a release
            try:
                item = run.order.next()
                if item is None:
                    return
                call = Call(self._bind(self.awaitable, item))
                INSIDE.set(True)
                try:
                    await run_under_async(item.held, call, partial(self._leave_async, run, item))
                except BaseException as error:
                    task = asyncio.current_task()
                    if not _is_handlers(call, error) or (_is_cancellation(error) and task and task.cancelling()):
                        raise
                finally:
                    INSIDE.set(False)
            finally:
                gate.release()
            recorder.record_soon()

    def _leave_async(self, run: Run, item: Item, claim: HeldClaim, call: Call) -> Awaitable[None]:
        return drive_async(run.leaving(item, claim, call), self.guard.store)


def _is_handlers(call: Call, error: BaseException) -> bool:
    """Return whether an exception of a call that is over is the handler's own failure, not an interrupt."""
    own = OVER in call and error is call.get(RAISED) and RETURNED not in call
    return own and (isinstance(error, Exception) or _is_cancellation(error))


def _is_cancellation(interrupt: BaseException) -> bool:
    """Return whether something in a handler was cancelled. Other records go on, unless the whole task was cancelled."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(interrupt, asyncio.CancelledError)
