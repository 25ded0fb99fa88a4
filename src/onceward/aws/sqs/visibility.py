"""Keeps the messages that this process holds invisible to others, from their receipt on.

One thread makes all changes of visibility, in the order in which they are due. So no extension follows the change that gives
its message back. A handler that blocks its event loop, or many waiting messages, cannot delay an extension.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from onceward.aws.sqs.message import ENTRIES, Message
from onceward.aws.sqs.queue import LONGEST_HOLD, Queue, QueueError
from onceward.consumers.callers import Tasks
from onceward.core.clock import Clock, boottime
from onceward.observe.logs import logger

_DELETING: Final = 0.1  # seconds that a message waits for others, so that one request deletes them


class Deletes:
    """Deletes messages in batches. It belongs to one event loop.

    A delete that fails is lost: its message is delivered again, replays and is deleted then. ``deleted`` is called with the
    receipt of each message when its delete has ended.
    """

    def __init__(self, queue: Queue, deleted: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue, self._deleted = queue, deleted
        self._waiting: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks()

    def add(self, receipt: str) -> None:
        """Delete a message soon."""
        self._waiting.append(receipt)
        if len(self._waiting) >= ENTRIES:
            self._send()
        elif self._timer is None:
            self._timer = self._loop.call_later(_DELETING, self._send)

    async def close(self) -> None:
        """Delete the waiting messages, and wait until all deletes have ended."""
        self._send()
        await self._tasks.end()

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        receipts, self._waiting = self._waiting, []
        if receipts:
            self._tasks.begin(self._delete(receipts))

    async def _delete(self, receipts: list[str]) -> None:
        errors: list[Exception | None]
        try:
            errors = list(await self._queue.delete_many_async(receipts))
        except Exception as error:  # treated like a refusal
            errors = [error] * len(receipts)
        for receipt in receipts:
            self._deleted(receipt)
        failed = [error for error in errors if error is not None]
        if failed:
            logger().warning(
                "%s; %d message(s) whose effects are recorded come again. They then replay and are deleted",
                failed[0],
                len(failed),
            )


LINGER: Final = 0.05  # seconds that a message waits for others, to be given back in one request


@dataclass(slots=True)
class HeldMessage:
    """A held message; its times are on the owner's clock."""

    message: Message
    since: float
    until: float
    due: float  # when to extend its visibility next


class Visibility:
    """The held messages of a queue, and the thread that extends their visibility by ``seconds`` from each receipt on."""

    def __init__(self, queue: Queue, seconds: int, clock: Clock = boottime) -> None:
        self._queue = queue
        self._seconds = seconds
        self._interval = seconds / 3
        self._clock = clock
        self._held: dict[str, HeldMessage] = {}
        self._back: dict[str, float] = {}  # receipts to give back → seconds that they stay invisible
        self._closed = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="onceward-visibility", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def hold(self, messages: Iterable[Message]) -> None:
        """Extend the visibility of messages received just now, until they are released or given back."""
        # No need to wake the thread: it sleeps for at most one interval, and none of these is due earlier.
        now = self._clock()
        with self._wake:
            for message in messages:
                self._held[message.receipt] = HeldMessage(message, now, now + self._seconds, now + self._interval)

    def release(self, receipt: str) -> None:
        """Hold a message no more: it is deleted, or comes back when its visibility ends."""
        with self._wake:
            self._held.pop(receipt, None)

    def give_back(self, receipt: str, seconds: float = 0.0) -> None:
        """Hold a message no more. It can be received again in ``seconds``."""
        with self._wake:
            held = self._held.pop(receipt, None)
            if held is None:
                return  # its receipt was lost, so we must not change it
            longest = LONGEST_HOLD - (self._clock() - held.since) - 1
            self._back[receipt] = max(0.0, min(seconds, longest))
            self._wake.notify()

    def close(self) -> None:
        """Give back the waiting messages, and end the thread. Held messages come back when their visibility ends."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._back or self._closed, self._until_due())
                if self._back:
                    self._wake.wait_for(lambda: len(self._back) >= ENTRIES or self._closed, LINGER)
                back, self._back = self._back, {}
                due = [] if self._closed else self._due()
                closed = self._closed
            if due:
                self._extend(due)
            if back:
                self._give(back)
            if closed:
                return

    def _until_due(self) -> float:
        now = self._clock()
        return max(0.0, min((held.due - now for held in self._held.values()), default=self._interval))

    def _due(self) -> list[HeldMessage]:
        """Return the messages to extend now: those that are due and, to save requests, those that are due soon."""
        now = self._clock()
        if not any(held.due <= now for held in self._held.values()):
            return []
        return [held for held in self._held.values() if held.due <= now + self._interval / 4]

    def _extend(self, due: list[HeldMessage]) -> None:
        sent = self._clock()
        requests = []
        for held in due:
            # "The 12-hour limit is from the time that Amazon SQS receives the ReceiveMessage request" (API Reference,
            # ChangeMessageVisibility)
            seconds = int(min(self._seconds, LONGEST_HOLD - (sent - held.since) - 1))
            if sent + seconds > held.until:
                requests.append((held, seconds))
            else:
                self._lose(held, "was held for 12 hours, which is the longest that SQS allows")
        errors = self._change([(held.message.receipt, float(seconds)) for held, seconds in requests])
        for (held, seconds), error in zip(requests, errors, strict=True):
            if error is None:
                held.until, held.due = sent + seconds, sent + self._interval
            elif error.transient:
                held.due = self._clock() + min(1.0, self._interval / 10)
            else:
                self._lose(held, f"could not be kept invisible ({error})")

    def _give(self, back: dict[str, float]) -> None:
        errors = [error for error in self._change(list(back.items())) if error is not None]
        if errors:
            logger().info("%s; %d message(s) come back only when their visibility ends", errors[0], len(errors))

    def _change(self, holds: list[tuple[str, float]]) -> list[QueueError | None]:
        try:
            return self._queue.change_many(holds)
        except Exception as error:  # the thread must continue; held messages are tried again
            return [QueueError(str(error), transient=True)] * len(holds)

    def _lose(self, held: HeldMessage, why: str) -> None:
        with self._wake:
            if self._held.pop(held.message.receipt, None) is None:
                return  # deleted or given back meanwhile
        logger().warning(
            "queue %s: message %s %s. It may be delivered again while its handler runs, and is then busy or replays",
            self._queue.name,
            held.message.id,
            why,
        )
