"""The thread that writes for coroutines. It commits all waiting writes together."""

import contextlib
import threading
import weakref
from collections.abc import Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, Protocol

from onceward.stores.sqlite.requests import SqlRequest

if TYPE_CHECKING:
    import asyncio


class Job:
    """A write that waits for its transaction. If ``looked`` is set, the key was already checked; the commit skips that."""

    looked = False
    done = False
    reply: object = None
    error: Exception | None = None

    def __init__(self, request: SqlRequest) -> None:
        self.request = request


class Writes(Protocol):
    """What the thread needs of its store."""

    def write(self, jobs: Sequence[Job]) -> None:
        """Open the file, and commit the jobs that write. Afterwards the jobs hold their replies or errors."""


class Waiting(NamedTuple):
    """A job, and the future of the loop that waits for it."""

    job: Job
    loop: "asyncio.AbstractEventLoop"
    done: "asyncio.Future[None]"


class Writer:
    """One daemon thread per store, started by the first coroutine that writes. It ends with its store, or by stop()."""

    def __init__(self, store: Writes) -> None:
        self._queue: SimpleQueue[Waiting | None] = SimpleQueue()
        # A strong reference would keep the store and its connections for ever.
        self._end = weakref.finalize(store, self._queue.put, None)
        self._end.atexit = False
        serve = (weakref.ref(store), self._queue)
        threading.Thread(target=_serve, args=serve, name="onceward-sqlite-writer", daemon=True).start()

    def put(self, job: Job) -> "asyncio.Future[None]":
        """Commit ``job`` in the thread; await the returned future. Cancelling the caller does not stop the job."""
        import asyncio

        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._queue.put(Waiting(job, loop, done))
        return done

    def stop(self) -> None:
        """End the thread after its queued jobs."""
        self._end()


def _serve(store: "weakref.ref[Writes]", queue: "SimpleQueue[Waiting | None]") -> None:
    while _serve_one(store, queue):
        pass  # a function of its own, so that its variables do not live until the next round


def _serve_one(store: "weakref.ref[Writes]", queue: "SimpleQueue[Waiting | None]") -> bool:
    batch = [queue.get()]
    while not queue.empty():
        batch.append(queue.get())
    waiting = [one for one in batch if one is not None]
    writes = store()
    if waiting and writes is not None:
        try:
            writes.write([one.job for one in waiting])
        except Exception as error:  # the thread serves others after this
            for one in waiting:
                one.job.error = one.job.error or error
    loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for one in waiting:
        loops.setdefault(one.loop, []).append(one.done)
    for loop, futures in loops.items():
        for _ in range(2):  # an interrupt can end the first one before it has told anybody
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(_wake, futures)
    return None not in batch


def _wake(futures: "list[asyncio.Future[None]]") -> None:
    for done in futures:
        if not done.done():
            done.set_result(None)
