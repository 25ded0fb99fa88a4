"""One run of a worker: messages go from the polls to the batch, and by what becomes of them are deleted or given back."""

import asyncio
import base64
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from onceward.aws.events.sqs import SOURCE
from onceward.aws.sqs.acknowledge import Backoff, Deletes, time_away
from onceward.aws.sqs.facts import QueueFacts
from onceward.aws.sqs.keeping import End, Keeper, Place
from onceward.aws.sqs.message import Message
from onceward.aws.sqs.polling import Polls
from onceward.aws.sqs.queue import Queue
from onceward.aws.sqs.visibility import Visibility
from onceward.batch.batch import Batch
from onceward.consumers.callers import Callers
from onceward.errors import ResultNotRecorded, StoreError

if TYPE_CHECKING:
    from onceward.batch.outcomes import Outcome
    from onceward.batch.runner import Run
    from onceward.consumers.delivery import Delivery

_log: Final = logging.getLogger("onceward")


class StoppableBatch(Batch):
    """A batch that can be told to begin nothing more; what is claimed and has not begun is then given back, and deferred."""

    # Set as it is used, so that the constructor is the batch's own.
    stopped = False

    async def _work_through_async(self, run: "Run") -> None:
        runs: set[Run] = self.__dict__.setdefault("_runs", set())
        if self.stopped:
            run.stop()
        runs.add(run)
        try:
            await super()._work_through_async(run)
        finally:
            runs.discard(run)

    def stop(self) -> None:
        """Begin nothing more; in the event loop's thread."""
        self.stopped = True
        gate = self._gate()
        for run in self.__dict__.get("_runs", ()):
            run.stop()
            for _ in range(run.width):
                gate.release()  # for those that wait for their turn, which is now to find that there is none


class Serving:
    """One run of a worker. It belongs to one event loop.

    Args:
        queue: where messages come from.
        batch: handles them; tells :meth:`told` of each outcome.
        facts: of the queue.
        delivery: makes a delivery of a Lambda record.
        visibility: seconds for which messages are invisible, at first and with each extension.
        wait: seconds of a long poll.
        backoff: for messages that failed.
        grace: seconds that running handlers have after a stop; None is as long as they take.
        until_empty: stop when there are no more messages.
    """

    def __init__(
        self,
        queue: Queue,
        batch: StoppableBatch,
        facts: QueueFacts,
        delivery: "Callable[[object], Delivery]",
        *,
        visibility: int,
        wait: float,
        backoff: Backoff,
        grace: float | None,
        until_empty: bool,
    ) -> None:
        self._batch, self._facts, self._delivery = batch, facts, delivery
        self._backoff, self._grace = backoff, grace
        self.held: dict[str, Message] = {}  # what has no outcome yet, by its receipt
        self._keeper = Keeper(batch, queue.name, facts.arn) if facts.receives is None else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._forced = False
        self._visibility = Visibility(queue, visibility)
        self._deletes = Deletes(queue, self._visibility.release)

        def receive(count: int) -> list[Message]:
            messages = queue.receive(count, wait, visibility)
            self._visibility.hold(messages)
            return messages

        self._polls = Polls(
            receive,
            self._taken,
            concurrency=batch.concurrency,
            typical=lambda: batch.typical,
            until_empty=until_empty,
        )

    async def run(self) -> None:
        """Serve until somebody says stop; then until all that runs is done, or the grace is over."""
        self._visibility.start()
        polls = asyncio.create_task(self._polls.run())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((polls, stop), return_when=asyncio.FIRST_COMPLETED)
            self.stop()  # the polls may have ended by themselves
            unfinished = await self._finished(polls)
            if unfinished:
                _log.warning(
                    "stopped after %g s of grace: %d handler(s) are interrupted, and their keys stay claimed to the end of their "
                    "leases",
                    self._grace,
                    len(self.held),
                )
        finally:
            self._forced = True
            stop.cancel()
            polls.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.wait({polls, stop, *self._tasks})
            await self._deletes.close()
            closing = Callers()
            await closing.call(self._visibility.close)
            closing.close()
        if not polls.cancelled():
            polls.result()

    def stop(self) -> None:
        """Begin nothing more, and give back what has not begun."""
        if not self._stop.is_set():
            self._stop.set()
            self._polls.stop()
            self._batch.stop()

    def told(self, outcome: "Outcome") -> None:
        """Delete a message, keep it or give it back, as soon as its outcome is in the ledger."""
        delivery: Delivery = outcome.record  # type: ignore[assignment]  # the only records that this batch is given
        receipt = delivery.raw["receiptHandle"]
        message = self.held.pop(receipt)
        if isinstance(outcome.error, StoreError | ResultNotRecorded):
            self._polls.ledger.met()
        elif outcome.status not in {"malformed", "deferred"}:
            self._polls.ledger.over()
        keeper = None if self._forced else self._keeper
        if keeper is not None and (place := keeper.place(outcome, message)) is not None:
            self._begin(self._keep(keeper, message, place))
            return
        self._polls.done()
        if outcome.ok:
            self._deletes.add(receipt)
        elif outcome.status == "failed" and self._forced:
            self._visibility.release(receipt)  # its key stays claimed, so nobody could do anything with it yet
        else:
            away = time_away(outcome, message.receive_count, self._backoff, redrive=self._facts.receives is not None)
            self._visibility.give_back(receipt, away)

    async def _keep(self, keeper: Keeper, message: Message, place: Place) -> None:
        """Keep a message in the ledger, and only then delete it."""
        away, end = self._backoff.seconds(message.receive_count), None
        try:
            end = await keeper.keep(message, place)
            if end in {End.ANOTHER, End.NO_ROOM}:
                away = self._backoff.longest
        except Exception as error:  # it is told, and nothing is lost
            self._polls.ledger.met()
            _log.warning("message %s is not kept in the ledger yet, and comes again: %s", message.id, error)
        finally:  # also when it was cancelled
            self._polls.done()
            if end is End.KEPT:
                self._deletes.add(message.receipt)
            else:
                self._visibility.give_back(message.receipt, away)

    async def _finished(self, polls: "asyncio.Task[None]") -> bool:
        """Wait for the end of all that is under way; return whether the grace was over before."""

        async def all_done() -> None:
            await asyncio.wait((polls,))
            while self._tasks:
                await asyncio.wait(set(self._tasks))

        try:
            async with asyncio.timeout(self._grace):
                await all_done()
        except TimeoutError:
            return True
        return False

    def _taken(self, messages: list[Message]) -> None:
        if self._stop.is_set():
            for message in messages:
                self._polls.done()
                self._visibility.give_back(message.receipt)
            return
        for message in messages:
            self.held[message.receipt] = message
        self._begin(self._handle(messages))

    def _begin(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, messages: list[Message]) -> None:
        try:
            await self._batch.run_async([self._delivery(record_of(message, self._facts)) for message in messages])
        except Exception:  # it is told, and nothing is lost
            _log.exception("a batch failed as a whole; its messages are given back")
        finally:
            for message in messages:
                if self.held.pop(message.receipt, None) is not None:  # it was cancelled before it began
                    self._polls.done()
                    self._visibility.give_back(message.receipt, 0.0 if self._forced else self._backoff.first)


def record_of(message: Message, facts: QueueFacts) -> dict[str, Any]:
    """Return a message as Lambda would hand it to a function (Lambda Developer Guide, "Using Lambda with Amazon SQS")."""
    attributes: dict[str, dict[str, object]] = {}
    for name, (kind, value) in message.user_attributes.items():
        told = {"binaryValue": base64.b64encode(value).decode()} if isinstance(value, bytes) else {"stringValue": value}
        attributes[name] = {**told, "stringListValues": [], "binaryListValues": [], "dataType": kind}
    return {
        "messageId": message.id,
        "receiptHandle": message.receipt,
        "body": message.body,
        "attributes": dict(message.attributes),
        "messageAttributes": attributes,
        "eventSource": SOURCE,
        "eventSourceARN": facts.arn,
        "awsRegion": facts.region,
    }
