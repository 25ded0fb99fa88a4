"""The one event loop of a Lambda function's coroutines, kept from one invocation to the next.

Lambda calls a handler and awaits nothing. A loop of its own for each invocation, as ``asyncio.run`` makes one, would leave
every async connection behind with its loop.
"""

import asyncio
import atexit
import threading
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")

_LOCK = threading.Lock()
_runner: asyncio.Runner | None = None
# Also in the threads that asyncio.to_thread makes.
_within: ContextVar[bool] = ContextVar("onceward-lambda-loop", default=False)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in this process's loop, and return its result.

    If a coroutine of that loop waits for a thread, a call from that thread gets its own loop, because the first is busy.

    Raises:
        RuntimeError: this thread runs an event loop already. Call a Lambda handler in another thread.
    """
    global _runner  # one for the life of the process
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
    if _within.get():
        return asyncio.run(work)
    with _LOCK:
        if _runner is None:
            _runner = asyncio.Runner()
            atexit.register(_runner.close)
        context = copy_context()  # otherwise the runner keeps the first invocation's context
        context.run(_within.set, True)
        return _runner.run(work, context=context)
