"""Deletes messages whose effects are recorded, ten with one request, and says how long the others stay away."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from onceward.aws.sqs.message import ENTRIES
from onceward.aws.sqs.queue import Queue
from onceward.errors import Busy
from onceward.observe.logs import logger

if TYPE_CHECKING:
    from onceward.batch.outcomes import Outcome

LINGER: Final = 0.1  # seconds that a message to delete may wait for others to be deleted with
_LEAST: Final = 1.0  # seconds between two looks at a busy key


class Deletes:
    """Deletes messages in batches. It belongs to one event loop.

    A delete that fails is lost: its message is delivered again, replays and is deleted then.

    Args:
        queue: their queue.
        deleted: called with the receipt of each message when there is nothing more to do about it.
    """

    def __init__(self, queue: Queue, deleted: Callable[[str], None]) -> None:
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._queue, self._deleted = queue, deleted
        self._waiting: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, receipt: str) -> None:
        """Delete a message soon."""
        self._waiting.append(receipt)
        if len(self._waiting) >= ENTRIES:
            self._send()
        elif self._timer is None:
            self._timer = self._loop.call_later(LINGER, self._send)

    async def close(self) -> None:
        """Delete what is waiting for that, and wait until all is done."""
        import asyncio

        self._send()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        receipts, self._waiting = self._waiting, []
        if receipts:
            task = self._loop.create_task(self._delete(receipts))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _delete(self, receipts: list[str]) -> None:
        errors: list[Exception | None]
        try:
            errors = list(await self._queue.delete_many_async(receipts))
        except Exception as error:  # as one that was refused
            errors = [error] * len(receipts)
        for receipt in receipts:
            self._deleted(receipt)
        failed = [error for error in errors if error is not None]
        if failed:
            logger().warning(
                "%s; %d message(s) whose effects are recorded come again, and will replay and be deleted then",
                failed[0],
                len(failed),
            )


class Backoff(NamedTuple):
    """How long a message that failed stays invisible: twice as long after each receive, in seconds."""

    first: float
    longest: float

    def seconds(self, receives: int) -> float:
        """Return the time after so many receives, with jitter, so that what failed together does not come together again."""
        wanted = self.first * 2.0 ** min(receives - 1, 60)
        return min(self.longest, wanted) * (0.5 + random.random() / 2)


def time_away(outcome: "Outcome", receives: int, backoff: Backoff, *, redrive: bool) -> float:
    """Return for how many seconds a message that cannot be acknowledged stays invisible.

    Args:
        outcome: what became of it.
        receives: how often it has been received.
        backoff: for what failed.
        redrive: whether the queue has a dead-letter queue, which takes what has been received too often.
    """
    if outcome.status == "deferred":
        return 0.0  # in a FIFO queue its group waits for the one that failed, which is still invisible
    if outcome.status == "busy":
        return max(_LEAST, outcome.error.retry_after) if isinstance(outcome.error, Busy) else _LEAST
    if outcome.status == "failed":
        return backoff.seconds(receives)
    # Parked, mismatch, malformed: trying again does not help. It goes the queue's own way to its dead-letter queue; where there
    # is none, it comes by now and then until it is kept in the ledger (keeping.py), or somebody has mended what is wrong.
    return backoff.first if redrive else backoff.longest
