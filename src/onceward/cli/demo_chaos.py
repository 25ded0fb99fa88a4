"""The demo's controller: starts workers, kills and pauses them in the middle of their work, and replaces them."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from onceward.cli.demo_queue import PAUSE, DemoQueue

KILL_EVERY, PAUSE_EVERY = 0.5, 0.9  # seconds, on average


class Chaos:
    """Worker processes, and how many were killed, or paused to go on as zombies."""

    def __init__(self, folder: Path, queue: DemoQueue, workers: int, work: float, store: str) -> None:
        self.kills = self.pauses = 0
        self._queue = queue
        self._arguments = [sys.executable, "-m", "onceward.cli.demo_worker", str(folder), str(work), store]
        self._workers = [self._start() for _ in range(workers)]
        self._paused: dict[int, float] = {}  # process id → when it goes on
        now = time.monotonic()
        self._next_kill, self._next_pause = now + 1, now + 1

    def step(self, *, gentle: bool) -> None:
        """Do what is due; when ``gentle``, only replace workers that ended."""
        now = time.monotonic()
        self._go_on(now)
        self._workers = [w if w.poll() is None else self._start() for w in self._workers]
        if gentle:
            return
        if now >= self._next_kill and (victim := self._busy_one()) is not None:
            victim.kill()
            victim.wait()
            self.kills += 1
            self._next_kill = now + KILL_EVERY * random.uniform(0.5, 1.5)
        if now >= self._next_pause and (victim := self._busy_one()) is not None:
            victim.send_signal(signal.SIGSTOP)
            self._paused[victim.pid] = now + PAUSE
            self.pauses += 1
            self._next_pause = now + PAUSE_EVERY * random.uniform(0.5, 1.5)

    def end(self) -> None:
        """Resume paused workers and wait for all; kill those that do not end."""
        while self._paused:
            self._go_on(time.monotonic())
            time.sleep(0.05)
        for worker in self._workers:
            try:
                worker.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._arguments, stdin=subprocess.DEVNULL, start_new_session=True)

    def _go_on(self, now: float) -> None:
        for worker in self._workers:
            if self._paused.get(worker.pid, now + 1) <= now:
                worker.send_signal(signal.SIGCONT)
                del self._paused[worker.pid]

    def _busy_one(self) -> "subprocess.Popen[bytes] | None":
        """Return a worker in the middle of a message, or None. One worker is always left alone."""
        free = [w for w in self._workers if w.pid not in self._paused]
        busy = [w for w in free if w.poll() is None and self._queue.is_working(w.pid)]
        return random.choice(busy) if busy and len(free) > 1 else None
