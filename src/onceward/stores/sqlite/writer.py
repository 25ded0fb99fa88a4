"""The thread that writes for coroutines. It commits all waiting writes together."""

import threading
import weakref
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from onceward.core.clock import boottime
from onceward.stores.sqlite.requests import SqlRequest

if TYPE_CHECKING:
    import asyncio


AGAIN: Final = 1.0  # seconds before a loop is told once more


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
        self._store = weakref.ref(store)
        self._start()

    def _start(self) -> None:
        serve = (self._store, self._queue)
        threading.Thread(target=_serve, args=serve, name="onceward-sqlite-writer", daemon=True).start()

    def put(self, job: Job) -> "asyncio.Future[None]":
        """Commit ``job`` in the thread; await the returned future. Cancelling the caller does not stop the job."""
        import asyncio

        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._queue.put(Waiting(job, loop, done))
        if not self._end.alive:  # a signal handler closed the store meanwhile: the thread may be gone
            self._start()
            self._queue.put(None)
        return done

    def stop(self) -> None:
        """End the thread after its queued jobs."""
        self._end()


class ToldFutures(NamedTuple):
    """Futures that a loop was told of, and when. If an interrupt strikes as ``_wake`` begins, they are still not done."""

    at: float
    loop: "asyncio.AbstractEventLoop"
    futures: "list[asyncio.Future[None]]"


def _serve(store: "weakref.ref[Writes]", queue: "SimpleQueue[Waiting | None]") -> None:
    told: list[ToldFutures] = []
    while _serve_one(store, queue, told):
        pass  # a function of its own, so that its variables do not live until the next round


def _serve_one(store: "weakref.ref[Writes]", queue: "SimpleQueue[Waiting | None]", told: list[ToldFutures]) -> bool:
    taken: list[Waiting | None] = []
    try:
        taken.append(queue.get(timeout=AGAIN if told else None))
    except Empty:
        pass  # only tell again
    while not queue.empty():
        taken.append(queue.get())
    waiting = [one for one in taken if one is not None]
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
    now = boottime()
    late = [one for one in told if not all(done.done() for done in one.futures)]
    told[:] = [one for one in late if now - one.at < AGAIN]
    again = [(one.loop, one.futures) for one in late if now - one.at >= AGAIN]
    for loop, futures in (*loops.items(), *again):
        try:
            loop.call_soon_threadsafe(_wake, futures)
        except RuntimeError:  # the loop was closed: nobody waits any more
            continue
        told.append(ToldFutures(now, loop, futures))
    return None not in taken


def _wake(futures: "list[asyncio.Future[None]]") -> None:
    try:
        for done in futures:
            if not done.done():
                done.set_result(None)
    except BaseException:
        _wake(futures)  # an interrupt struck here; those who wait must still be told
        raise
