"""Threads that run the handlers of a batch, and plain functions that run in threads beside an event loop."""

import threading
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import wraps
from typing import ParamSpec, cast

from onceward.claim.handler import handler_of

P = ParamSpec("P")


def awaitable(
    function: Callable[P, object], in_thread: Callable[..., Awaitable[object]]
) -> Callable[P, Awaitable[object]]:
    """Return ``function`` as an awaitable one. A plain function runs ``in_thread``, because it may block."""
    if handler_of(function).is_async:
        return cast("Callable[P, Awaitable[object]]", function)

    def outcome(*args: P.args, **kwargs: P.kwargs) -> tuple[object, Exception | None]:
        try:
            return function(*args, **kwargs), None
        except (
            Exception
        ) as error:  # a future takes no StopIteration, and takes concurrent.futures' CancelledError for its own
            return None, error

    @wraps(function, updated=())
    async def call(*args: P.args, **kwargs: P.kwargs) -> object:
        value, error = cast("tuple[object, Exception | None]", await in_thread(outcome, *args, **kwargs))
        if error is not None:
            try:
                raise error
            finally:
                del error  # it holds this frame
        return await cast("Awaitable[object]", value) if hasattr(value, "__await__") else value

    return call


class HandlerThreads:
    """Threads that share the starting thread's work. You can wait for them even if interrupts come.

    An interrupted ``Thread.join`` takes its thread for dead (CPython below 3.13). An interrupted ``Event.wait`` may keep the
    event's lock for ever. A plain lock does neither.
    """

    def __init__(self) -> None:
        self._closed = False
        self._working: list[threading.Lock] = []  # one per running thread, released when it ends

    def start(self, count: int, work: Callable[[], None]) -> None:
        """Start up to ``count`` threads that call ``work`` in a copy of this context; fewer if the system has no more."""
        for _ in range(count):
            within = copy_context().run
            try:
                threading.Thread(target=within, args=(self._run, work), name="onceward-batch", daemon=True).start()
            except RuntimeError:
                return

    def join(self) -> None:
        """Wait for the threads that have begun. Those that begin later do nothing."""
        self._closed = True
        for working in list(self._working):
            with working:
                pass

    def _run(self, work: Callable[[], None]) -> None:
        working = threading.Lock()
        with working:
            self._working.append(working)
            if not self._closed:  # check after the append: join() sets it before it reads the list
                work()
