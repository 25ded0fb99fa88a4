"""The threads of ``onceward pipe``, and the lines on their way from the reader to them."""

import threading
import time
from collections.abc import Callable
from typing import Final

from onceward.consumers.stop import Stop
from onceward.pipe.lines import LONGEST
from onceward.pipe.outcomes import LineJob

_ASIDE: Final = 64  # jobs that can wait for a key beside those that can run


class Jobs:
    """Threads that run jobs, each the first whose key no other thread has.

    A job whose key another process holds is tried again later. So two processes on one file share its lines. Memory is constant:
    the count and the bytes of the jobs that wait are bounded. After ``stop`` none begins.

    Args:
        size: how many threads.
        stop: ends them after their jobs.
        run: runs a job, and returns in how many seconds to try it again; None if it is done. It raises nothing.

    Raises:
        RuntimeError: the system has no thread for this user.
    """

    def __init__(self, size: int, stop: Stop, run: Callable[[LineJob], float | None]) -> None:
        self._most, self._stop, self._run = size + _ASIDE, stop, run
        self._waiting: list[LineJob] = []
        self._bytes = 0
        self._running: set[str | None] = set()
        self._open = True
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(size)]
        for thread in self._threads:
            thread.start()

    def put(self, job: LineJob) -> None:
        """Add a job; waits for room, or for the stop."""
        with self._changed:
            while (len(self._waiting) >= self._most or self._bytes >= 2 * LONGEST) and not self._stop.asked:
                self._changed.wait(0.1)  # short, because a signal handler cannot notify
            self._add(job)

    def end(self) -> None:
        """Take no more jobs."""
        with self._changed:
            self._open = False
            self._changed.notify_all()

    def join(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for the end of all threads; return whether it came."""
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _add(self, job: LineJob) -> None:
        self._waiting.append(job)
        self._bytes += len(job.data)
        self._changed.notify_all()

    def _work(self) -> None:
        while (job := self._take()) is not None:
            again_in = self._run(job)
            with self._changed:
                self._running.discard(job.key)
                self._changed.notify_all()
                if again_in is not None:
                    job.due = time.monotonic() + again_in
                    self._add(job)

    def _take(self) -> LineJob | None:
        """Return the next job; None when no job is left."""
        with self._changed:
            while not self._stop.asked and (self._open or self._waiting or self._running):
                now = time.monotonic()
                for number, job in enumerate(self._waiting):
                    if job.due <= now and job.key not in self._running:
                        del self._waiting[number]
                        self._bytes -= len(job.data)
                        self._running.add(job.key)
                        self._changed.notify_all()
                        return job
                self._changed.wait(0.05)
            return None
