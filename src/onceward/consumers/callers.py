"""What an event loop has begun: blocking calls in reusable threads, which do not keep the process alive, and tasks that nobody awaits."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


async def unless_set(stop: asyncio.Event, work: Awaitable[T]) -> T | None:
    """Return what ``work`` returns; None if ``stop`` is set first, because a stop must not wait for what hangs."""
    task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        stopped.cancel()


async def comes(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until an event is set from now on, at most so many seconds; return whether it was."""
    event.clear()
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


class Callers:
    """One thread for each running call. It belongs to one event loop."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0  # threads that wait for a call
        self._closed = False

    def call(self, call: Callable[[], T]) -> "asyncio.Future[T]":
        """Call in one of the threads, and return a future of the result."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._lock:
            fresh = not self._idle
            if not fresh:
                self._idle -= 1
        self._calls.put((call, future))
        if fresh:
            threading.Thread(target=self._work, name="onceward-queue", daemon=True).start()
        return future

    def close(self) -> None:
        """Let the threads end; a busy one ends after its call."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._calls.put(None)

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            call, future = item
            value, error = None, None
            try:
                value = call()
            except BaseException as raised:  # raised by the future
                error = raised
            with self._lock:
                self._idle += not self._closed  # before _tell, so that the receiver finds the thread idle
                closed = self._closed
            with suppress(RuntimeError):  # the event loop is closed
                future.get_loop().call_soon_threadsafe(_tell, future, value, error)
            del item, call, future, value, error
            if closed:
                return


def _tell(future: "asyncio.Future[Any]", value: object, error: BaseException | None) -> None:
    # asyncio.wrap_future would take an error CancelledError of concurrent.futures for a cancellation.
    if future.done():
        return  # no caller waits any more
    if isinstance(error, StopIteration):  # no future takes one
        future.set_exception(RuntimeError(f"a call raised {error!r}"))
    elif error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


class Tasks(set["asyncio.Task[None]"]):
    """Work that was begun, and whose end nobody awaits. It belongs to one event loop.

    ``passing`` are errors that do no harm: what was asked for comes again.
    """

    def __init__(self, *passing: type[Exception]) -> None:
        super().__init__()
        self._passing = passing

    def begin(self, work: Awaitable[object]) -> None:
        """Begin some work."""

        async def done() -> None:
            with suppress(*self._passing):
                await work

        task = asyncio.get_running_loop().create_task(done())
        self.add(task)
        task.add_done_callback(self.discard)

    async def end(self, seconds: float | None = None) -> None:
        """Wait until all has ended, but not for longer than so many seconds."""
        if self:
            await asyncio.wait(set(self), timeout=seconds)
        for task in self:
            task.cancel()
        await asyncio.gather(*self, return_exceptions=True)
