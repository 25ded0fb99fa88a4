"""The one event loop of a Lambda function's coroutines, kept from one invocation to the next.

Lambda calls a handler and awaits nothing. A loop of its own for each invocation, as ``asyncio.run`` makes one, would leave
every async connection behind with its loop.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from contextvars import copy_context
from typing import Any, Final, TypeVar

T = TypeVar("T")


class _Kept:
    """The loop of one process, and the lock of the call that runs it."""

    def __init__(self) -> None:
        self.busy = threading.Lock()
        self.runner = asyncio.Runner()


# The last is this process's. A fork keeps its parent's: a loop that is closed or deleted there stops the parent's, too.
_KEPT: Final = [_Kept()]


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in this process's loop, and return its result.

    While that loop is busy, a call from another thread gets its own loop: the first may wait for that thread.

    Raises:
        RuntimeError: this thread runs an event loop already. Call a Lambda handler in another thread.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        work.close()
        raise RuntimeError(
            "a Lambda handler of an async function runs an event loop, so it cannot be called within one: call it in a thread, as "
            "in asyncio.to_thread(handler, event, context)"
        )
    kept = _KEPT[-1]
    if not kept.busy.acquire(blocking=False):
        return asyncio.run(work)
    try:
        return kept.runner.run(work, context=copy_context())  # otherwise the runner keeps the first call's context
    finally:
        kept.busy.release()


def _close() -> None:
    _KEPT[-1].runner.close()


atexit.register(_close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _KEPT.append(_Kept()))
