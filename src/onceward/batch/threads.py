"""Threads that help with a batch, and plain functions that are called in threads beside an event loop."""

import threading
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import wraps
from typing import ParamSpec, TypeVar, cast

from onceward.claim.handler import describe

P = ParamSpec("P")
R = TypeVar("R")


def without_stop_iteration(function: Callable[P, R]) -> Callable[P, R]:
    """Return ``function`` with RuntimeError in the place of StopIteration, as coroutine functions raise it (PEP 479).

    No future can hold a StopIteration, and whoever awaits one in a thread would do so for ever (Python below 3.12).
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except StopIteration as error:
            raise RuntimeError(f"{function!r} raised StopIteration") from error

    return call


def awaitable(
    function: Callable[P, object], in_thread: Callable[..., Awaitable[object]]
) -> Callable[P, Awaitable[object]]:
    """Return ``function`` as one to await; one that is no coroutine function is called ``in_thread``, for it may block."""
    if describe(function).is_async:
        return cast("Callable[P, Awaitable[object]]", function)
    safe = without_stop_iteration(function)

    @wraps(function, updated=())
    async def call(*args: P.args, **kwargs: P.kwargs) -> object:
        value = await in_thread(safe, *args, **kwargs)
        return await cast("Awaitable[object]", value) if hasattr(value, "__await__") else value

    return call


class Helpers:
    """Threads that do the same work as the one that starts them, and can be waited for although interrupts come in between.

    ``Thread.join`` cannot: when it is interrupted it takes its thread for dead (CPython below 3.13), and an interrupted
    ``Event.wait`` may keep the event's own lock for ever. A plain lock does neither.
    """

    def __init__(self) -> None:
        self._closed = False
        self._working: list[threading.Lock] = []  # of each that has begun; released when it is through

    def start(self, count: int, work: Callable[[], None]) -> None:
        """Have up to ``count`` threads call ``work``, each in a copy of this context; fewer when there are no more threads."""
        for _ in range(count):
            within = copy_context().run
            try:
                threading.Thread(target=within, args=(self._run, work), name="onceward-batch", daemon=True).start()
            except RuntimeError:
                return

    def join(self) -> None:
        """Wait for those that have begun; the others will find that there is nothing to do."""
        self._closed = True
        for working in list(self._working):
            with working:
                pass

    def _run(self, work: Callable[[], None]) -> None:
        working = threading.Lock()
        with working:
            self._working.append(working)
            if not self._closed:  # asked after it can be seen, as join() looks after it has closed
                work()
