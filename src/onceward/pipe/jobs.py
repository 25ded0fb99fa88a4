"""The threads of ``onceward pipe``, and the lines on their way from the reader to them."""

import threading
import time
from collections import deque
from collections.abc import Callable

from onceward.consumers.stop import Stop
from onceward.pipe.lines import LONGEST
from onceward.pipe.outcomes import LineJob


class Jobs:
    """Threads that run jobs: a few fresh ones, and some put aside because their key is busy.

    A job whose key another process holds is put aside and tried again later. So two processes on one file share its lines.
    Both parts are bounded, so memory is constant: ``size`` fresh jobs at most. After ``stop`` none begins.

    Args:
        size: how many threads.
        stop: ends them after their jobs.
        run: runs a job, and returns in how many seconds to try it again; None if it is done. It raises nothing.

    Raises:
        RuntimeError: the system has no thread for this user.
    """

    _ASIDE, _ASIDE_BYTES = 64, 2 * LONGEST

    def __init__(self, size: int, stop: Stop, run: Callable[[LineJob], float | None]) -> None:
        self._size, self._stop, self._run = size, stop, run
        self._fresh: deque[LineJob] = deque()
        self._aside: deque[LineJob] = deque()
        self._running: set[str | None] = set()
        self._open = True
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(size)]
        for thread in self._threads:
            thread.start()

    def put(self, job: LineJob) -> None:
        """Add a fresh job; waits for room, or for the stop."""
        with self._changed:
            while len(self._fresh) >= self._size and not self._stop.asked:
                self._changed.wait(0.1)  # short, because a signal handler cannot notify
            self._fresh.append(job)
            self._changed.notify_all()

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

    def waiting(self) -> tuple[int, float]:
        """Return how many jobs wait for another process, and for how many seconds at most. 0 while other jobs are left."""
        with self._changed:
            if self._open or self._fresh or not self._aside:
                return 0, 0.0
            now = time.monotonic()
            return len(self._aside), max((job.give_up or now) - now for job in self._aside)

    def _work(self) -> None:
        while (job := self._take()) is not None:
            again_in = self._run(job)
            with self._changed:
                self._running.discard(job.key)
                if again_in is not None:
                    job.due = time.monotonic() + again_in
                    self._aside.append(job)
                self._changed.notify_all()

    def _take(self) -> LineJob | None:
        """Return the next job whose key no other thread has; None when no job is left."""
        with self._changed:
            while not self._stop.asked:
                job = self._next()
                if job is not None:
                    self._running.add(job.key)
                    return job
                if not (self._open or self._fresh or self._aside or self._running):
                    return None
                self._changed.wait(0.05)
            return None

    def _next(self) -> LineJob | None:
        now = time.monotonic()
        for job in self._aside:
            if job.due <= now and job.key not in self._running:
                self._aside.remove(job)
                return job
        while (
            self._fresh
            and len(self._aside) < self._ASIDE
            and sum(len(job.data) for job in self._aside) < self._ASIDE_BYTES
        ):
            job = self._fresh.popleft()
            self._changed.notify_all()
            if job.key not in self._running:
                return job
            self._aside.append(job)
        return None
