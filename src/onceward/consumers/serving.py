"""One run of a worker: messages go from the polls to the batch, and their outcomes back to the broker."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Generic, TypeVar, cast

from onceward.batch.batch import Batch
from onceward.batch.outcomes import BatchOutcome
from onceward.batch.runner import Run
from onceward.consumers.broker import Broker
from onceward.consumers.callers import Tasks, unless_set
from onceward.consumers.dead_letters import dead_headers, is_unhandled
from onceward.consumers.delivery import Backoff, Delivery, time_away
from onceward.consumers.keeping import keep, place_for
from onceward.consumers.polling import Polls
from onceward.errors import ResultNotRecorded, StoreError
from onceward.observe.logs import logger
from onceward.results.outcomes import describe

M = TypeVar("M")


class StoppableBatch(Batch):
    """A batch that can stop. Keys that are claimed but have not begun are then given back, as deferred."""

    # A class attribute, so that Batch's constructor is enough.
    stopped = False

    async def _work_through_async(self, run: Run) -> None:
        runs: set[Run] = self.__dict__.setdefault("_runs", set())
        if self.stopped:
            run.order.stop()
        runs.add(run)
        try:
            await super()._work_through_async(run)
        finally:
            runs.discard(run)

    def stop(self) -> None:
        """Begin nothing more; in the event loop's thread."""
        self.stopped = True
        gate = self.turns.gate()
        for run in self.__dict__.get("_runs", ()):
            run.order.stop()
            for _ in range(run.order.width):
                gate.release()  # wakes the records that wait, so that they see the stop


class Serving(Generic[M]):
    """One run of a worker, in one event loop: the part of :class:`onceward.consumers.worker.Worker` that serves a broker that is open."""

    _broker: Broker[M]
    _batch: StoppableBatch  # it calls :meth:`told` with each outcome
    _backoff: Backoff
    _grace: float | None
    _polls: Polls[M]
    _loop: asyncio.AbstractEventLoop | None = None
    _asked = _forced = False

    def __init__(self) -> None:
        self._held: dict[Delivery, M] = {}  # messages that have no outcome yet
        self._tasks = Tasks()
        self._stop = asyncio.Event()

    async def ready(self) -> None:
        """Wait until messages may be received. Override it to hold them back."""

    async def _receive(self, count: int) -> Sequence[M]:
        """Receive when the worker is ready, or nothing after a stop."""
        await unless_set(self._stop, self.ready())
        return () if self._stop.is_set() else await self._broker.receive(count)

    async def _serve(self, *, until_empty: bool) -> None:
        """Serve until :meth:`stop`, and then until the running handlers end or the grace is over."""
        broker, batch = self._broker, self._batch
        parks = batch.guard.policy.on_lapse == "park"  # then no key is claimed before its handler begins
        self._polls = Polls(
            broker,
            broker.receive if type(self).ready is Serving.ready else self._receive,
            self._take,
            concurrency=batch.concurrency,
            typical=lambda: 0.0 if parks else batch.typical,
            until_empty=until_empty,
        )
        self._loop = asyncio.get_running_loop()
        if self._asked:
            self._stop_now()
        polls = asyncio.create_task(self._polls.run())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((polls, stop), return_when=asyncio.FIRST_COMPLETED)
            self._stop_now()  # the polls may have ended by themselves
            if not await self._finished(polls):
                logger().warning(
                    "stopped after %g s of grace: %d handler(s) are interrupted, and their keys stay claimed to the end of their "
                    "leases",
                    self._grace,
                    len(self._held),
                )
        finally:
            self._forced, self._loop = True, None
            stop.cancel()
            polls.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.wait({polls, stop, *self._tasks})
        if not polls.cancelled():
            polls.result()

    def _stop_now(self) -> None:
        """Begin nothing more, and give back what has not begun."""
        if not self._stop.is_set():
            self._stop.set()
            self._polls.stop()
            self._broker.stop()
            self._batch.stop()

    def told(self, outcome: BatchOutcome) -> None:
        """Acknowledge a message, keep it or give it back: its outcome is in the ledger. Override it to report outcomes, too."""
        delivery = cast("Delivery", outcome.record)  # this batch gets no other records
        message = self._held.pop(delivery)
        receives = self._broker.receives(message)
        if isinstance(outcome.error, StoreError | ResultNotRecorded):
            self._polls.ledger.note_failure()
        elif outcome.status not in {"malformed", "deferred"}:
            self._polls.ledger.over()
        move = None if self._forced else self._put_away(outcome, message, delivery, receives)
        if move is not None:
            self._tasks.begin(self._move(message, delivery, move))
            return
        self._polls.done()
        if outcome.ok:
            self._broker.acknowledge(message)
        elif outcome.status == "failed" and self._forced:
            self._broker.leave(message)  # its key stays claimed, so nobody could do anything with it yet
        else:
            away = time_away(outcome, receives, self._backoff, goes=self._broker.dead_letters == "broker")
            self._broker.give_back(message, away)

    def _put_away(
        self, outcome: BatchOutcome, message: M, delivery: Delivery, receives: int
    ) -> Coroutine[object, object, bool | None] | None:
        """Return what takes a message that cannot be handled out of its queue; None if it stays there, or is done."""
        broker, guard = self._broker, self._batch.guard
        if broker.dead_letters == "ledger":
            place = place_for(outcome, delivery, receives, guard)
            return None if place is None else keep(broker, guard, message, delivery, place)
        if broker.dead_letters == "publish" and is_unhandled(outcome):
            return broker.dead_letter(message, dead_headers(outcome, broker.name, receives))
        return None

    async def _move(self, message: M, delivery: Delivery, move: Coroutine[object, object, bool | None]) -> None:
        """Move a message out of its queue, and only then acknowledge it."""
        away, is_there = self._backoff.seconds(self._broker.receives(message)), False
        try:
            is_there = await move is not False
        except Exception as error:  # it is logged, and nothing is lost
            where = "the dead letters"
            if self._broker.dead_letters == "ledger":
                where = "the ledger"
                self._polls.ledger.note_failure()
            logger().warning(
                "message %s could not be moved to %s, and comes again: %s", delivery.id, where, describe(error)
            )
        finally:  # also when it was cancelled
            self._polls.done()
            if is_there:
                self._broker.acknowledge(message)
            else:
                self._broker.give_back(message, away)

    async def _finished(self, polls: "asyncio.Task[None]") -> bool:
        """Wait until all tasks end; return whether they did before the grace was over."""
        try:
            async with asyncio.timeout(self._grace):
                await asyncio.wait((polls,))
                while self._tasks:
                    await asyncio.wait(set(self._tasks))
        except TimeoutError:
            return False
        return True

    def _take(self, messages: Sequence[M]) -> None:
        if self._stop.is_set():
            for message in messages:
                self._polls.done()
                self._broker.give_back(message)
            return
        deliveries = {self._broker.delivery(message): message for message in messages}
        self._held |= deliveries
        self._tasks.begin(self._handle(deliveries))

    async def _handle(self, deliveries: dict[Delivery, M]) -> None:
        try:
            await self._batch.run_async(list(deliveries))
        except Exception:  # it is logged, and nothing is lost
            logger().exception("a whole batch failed; its messages are given back")
        finally:
            for delivery, message in deliveries.items():
                if self._held.pop(delivery, None) is not None:  # it was cancelled before it began
                    self._polls.done()
                    self._broker.give_back(message, 0.0 if self._forced else self._backoff.first)
