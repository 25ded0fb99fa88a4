"""The lines that have a key, on their way from the reader to the workers."""

import time
from collections import deque
from dataclasses import dataclass
from threading import Condition

from onceward.consumers.stop import Stop
from onceward.pipe.lines import LONGEST


@dataclass(slots=True)
class LineJob:
    """A line that has a key."""

    file: str
    number: int
    data: bytes
    key: str  # as it stands in the ledger
    given: object  # the command's arguments, or the parsed line for a function
    due: float = 0.0  # when to try it, on the monotonic clock
    give_up: float | None = None  # until when to wait for another worker that holds the key; None before one was met


class Jobs:
    """The jobs between the reader and the workers: a few fresh ones, and some put aside because their key is busy.

    A job whose key another process holds is put aside and tried again later. So two processes on one file share its lines.
    Both parts are bounded, so memory is constant: ``size`` fresh jobs at most. After ``stop`` none is handed out.
    """

    _ASIDE, _ASIDE_BYTES = 64, 2 * LONGEST

    def __init__(self, size: int, stop: Stop) -> None:
        self._size = size
        self._stop = stop
        self._fresh: deque[LineJob] = deque()
        self._aside: deque[LineJob] = deque()
        self._running: set[str] = set()
        self._open = True
        self._changed = Condition()

    def put(self, job: LineJob) -> None:
        """Add a fresh job; waits for room, or for the stop."""
        with self._changed:
            while len(self._fresh) >= self._size and not self._stop.asked:
                self._changed.wait(0.1)  # short, because a signal handler cannot notify
            self._fresh.append(job)
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._open = False
            self._changed.notify_all()

    def take(self) -> LineJob | None:
        """Return the next job whose key no other worker here has; None when no job is left."""
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

    def done(self, job: LineJob, *, again_in: float | None = None) -> None:
        """Give the job's key back. ``again_in`` puts the job aside: it is tried again in so many seconds."""
        with self._changed:
            self._running.discard(job.key)
            if again_in is not None:
                job.due = time.monotonic() + again_in
                self._aside.append(job)
            self._changed.notify_all()

    def waiting(self) -> tuple[int, float]:
        """Return how many jobs wait for another process, and for how many seconds at most. 0 while other jobs are left."""
        with self._changed:
            if self._open or self._fresh or not self._aside:
                return 0, 0.0
            now = time.monotonic()
            return len(self._aside), max((job.give_up or now) - now for job in self._aside)

    def _next(self) -> LineJob | None:
        now = time.monotonic()
        for job in self._aside:
            if job.due <= now and job.key not in self._running:
                self._aside.remove(job)
                return job
        while self._fresh and self._has_room_aside():
            job = self._fresh.popleft()
            self._changed.notify_all()
            if job.key not in self._running:
                return job
            self._aside.append(job)
        return None

    def _has_room_aside(self) -> bool:
        return len(self._aside) < self._ASIDE and sum(len(job.data) for job in self._aside) < self._ASIDE_BYTES
