"""Who waits for a connection, in the order in which they came: threads and coroutines alike.

The first is woken when a connection is free, and nobody else takes it. There are two exceptions. If it stays free for a while, the
first is stuck, for example in a busy event loop, and others go before it. A signal handler goes before what it has interrupted.
No lock is around the line itself, since a signal handler could interrupt its holder.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from onceward.core.clock import boottime

T = TypeVar("T")
_NAP: Final = 0.5  # seconds without a word after which one looks whether the first is stuck:
_MOMENT: Final = 0.05  # whether it leaves for so long what is there


class ThreadInLine:
    """One that waits in a thread."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def wake(self) -> None:
        """Let it look."""
        with contextlib.suppress(RuntimeError):  # it is awake already
            self._asleep.release()

    def sleep(self, seconds: float) -> bool:
        """Wait until it is woken; return False if nobody did."""
        return self._asleep.acquire(timeout=seconds)


class TaskInLine:
    """One that waits in a coroutine."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self._loop = asyncio.get_running_loop()
        self._asleep: asyncio.Future[bool] = self._loop.create_future()

    def wake(self) -> None:
        """Let it look."""
        if asyncio._get_running_loop() is self._loop:  # the documented one raises where there is none
            self._tell(woken=True)
            return
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._tell, True)

    def _tell(self, woken: bool) -> None:
        if not self._asleep.done():
            self._asleep.set_result(woken)

    async def sleep(self, seconds: float) -> bool:
        """Wait until it is woken; return False if nobody did."""
        timer = self._loop.call_later(seconds, self._tell, False)
        try:
            return await self._asleep
        finally:
            timer.cancel()
            self._asleep = self._loop.create_future()


class Turns:
    """The turns of those who wait.

    Args:
        is_there: tells whether what they wait for is there.
    """

    def __init__(self, is_there: Callable[[], bool]) -> None:
        self._is_there = is_there
        self._places: deque[ThreadInLine | TaskInLine] = deque()

    def __bool__(self) -> bool:
        return bool(self._places)

    def wake(self) -> None:
        """Wake the first. Call it when what they wait for is there."""
        with contextlib.suppress(IndexError):
            self._places[0].wake()

    def wait(self, look: Callable[[], T | None], seconds: float) -> T | None:
        """Wait until ``look()`` finds something, and return that; None if it took too long."""
        place, end, woken, stuck = ThreadInLine(), boottime() + seconds, True, False
        try:
            self._places.append(place)
            while True:
                if ((stuck and not woken) or self._is_next(place)) and (found := look()) is not None:
                    return found
                left = end - boottime()
                if left <= 0:
                    return None
                stuck = not woken and self._is_there()
                woken = place.sleep(min(left, _MOMENT if stuck else _NAP))
        finally:
            self._leave(place)

    async def wait_async(self, look: Callable[[], T | None], seconds: float) -> T | None:
        """As :meth:`wait`, for a coroutine."""
        place, end, woken, stuck = TaskInLine(), boottime() + seconds, True, False
        try:
            self._places.append(place)
            while True:
                if ((stuck and not woken) or self._places[0] is place) and (found := look()) is not None:
                    return found
                left = end - boottime()
                if left <= 0:
                    return None
                stuck = not woken and self._is_there()
                woken = await place.sleep(min(left, _MOMENT if stuck else _NAP))
        finally:
            self._leave(place)

    def _is_next(self, place: ThreadInLine) -> bool:
        """Tell whether it is the first, or the first is stuck beneath it."""
        first = self._places[0]
        return first is place or first.thread == place.thread

    def _leave(self, place: ThreadInLine | TaskInLine) -> None:
        with contextlib.suppress(ValueError):
            self._places.remove(place)
        if self._places and self._is_there():
            self.wake()
