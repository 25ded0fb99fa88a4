"""Deletes messages whose effects are recorded, ten with one request."""

import asyncio
from collections.abc import Callable
from typing import Final

from onceward.aws.sqs.message import ENTRIES
from onceward.aws.sqs.queue import Queue
from onceward.observe.logs import logger

LINGER: Final = 0.1  # seconds that a message waits for others, so that one request deletes them


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
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, receipt: str) -> None:
        """Delete a message soon."""
        self._waiting.append(receipt)
        if len(self._waiting) >= ENTRIES:
            self._send()
        elif self._timer is None:
            self._timer = self._loop.call_later(LINGER, self._send)

    async def close(self) -> None:
        """Delete the waiting messages, and wait until all deletes have ended."""
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
