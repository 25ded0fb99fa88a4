"""An event loop in a thread of its own, for targets whose client can only be awaited."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}  # by process: a fork has no threads of its parent
_SPARE = 1.0  # seconds until a loop that has stopped is given up


def own_loop() -> asyncio.AbstractEventLoop:
    """Return this process's loop, which is always the same one, running."""
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            _loops.clear()
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="onceward-targets", daemon=True).start()
        return loop


def awaited(work: Coroutine[Any, Any, T], seconds: float, loop: asyncio.AbstractEventLoop | None = None) -> T:
    """Return what a coroutine returns, in a loop of another thread (default :func:`own_loop`).

    Raises:
        TimeoutError: it takes longer, or the loop has stopped.
    """

    async def in_time() -> T:
        async with asyncio.timeout(seconds):
            return await work

    future = asyncio.run_coroutine_threadsafe(in_time(), loop or own_loop())
    try:
        return future.result(seconds + _SPARE)
    finally:
        future.cancel()


def _forked() -> None:
    global _lock  # another thread of the parent may have held it
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
