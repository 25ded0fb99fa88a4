"""The thread that writes for coroutines: it takes all that has come in meanwhile and commits it together."""

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

    from onceward.stores.sqlite import Job


async def in_thread(function: Callable[[], object]) -> None:
    """Run a function that may wait for the disk, away from the loop."""
    import asyncio  # noqa: PLC0415 - 40 ms at a cold start, and whoever awaits this has loaded it already

    await asyncio.to_thread(function)


class Writes(Protocol):
    """What the thread needs of its store."""

    def write(self, jobs: "Sequence[Job]") -> None:
        """Commit the jobs; their replies or errors are in them afterwards."""


class Writer:
    """One daemon thread per store, started by the first coroutine that writes."""

    def __init__(self, store: Writes) -> None:
        self._store = store
        self._waiting: SimpleQueue[tuple[Job, asyncio.AbstractEventLoop, asyncio.Future[None]]] = SimpleQueue()
        threading.Thread(target=self._run, name="onceward-sqlite-writer", daemon=True).start()

    async def write(self, job: "Job") -> None:
        """Have ``job`` committed. A cancelled caller does not stop a write that is on its way."""
        import asyncio  # noqa: PLC0415 - 40 ms at a cold start, and whoever awaits this has loaded it already

        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._waiting.put((job, loop, done))
        await done

    def _run(self) -> None:
        while True:
            waiting = [self._waiting.get()]
            while not self._waiting.empty():
                waiting.append(self._waiting.get())
            try:
                self._store.write([job for job, _, _ in waiting])
            except Exception as error:  # noqa: BLE001 - the thread serves others after this
                for job, _, _ in waiting:
                    job.error = job.error or error
            loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
            for _, loop, done in waiting:
                loops.setdefault(loop, []).append(done)
            for loop, futures in loops.items():
                try:
                    loop.call_soon_threadsafe(_wake, futures)
                except RuntimeError:  # the loop was closed: nobody waits any more
                    continue


def _wake(futures: "list[asyncio.Future[None]]") -> None:
    for done in futures:
        if not done.done():
            done.set_result(None)
