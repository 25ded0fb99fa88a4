"""The clock of an SQLite ledger: the host's uptime, anchored once per boot in the ledger itself.

SQLite runs inside each worker, so its ``now`` is the worker's own wall clock: a worker whose clock is set wrong, or a
clock that jumps while a lease runs, would steal leases and forget records. What all workers on one file do share is the
kernel they run under (WAL needs shared memory). So ledger time is the kernel's uptime, which nobody can set, plus an
anchor: the time of day that the first worker of this boot wrote down. After a reboot, or on another host, the anchor is
written anew, never before the newest record, so that ledger time does not run backwards.

Where the kernel tells no uptime and no boot id (not Linux), ledger time is the system clock that all processes share.
"""

import os
import time
from collections.abc import Callable

from onceward.core.clock import boottime

UPTIME = "/proc/uptime"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
RESOLUTION = 0.01  # seconds: /proc/uptime counts hundredths
SECOND = 1.0
TRIES = 20


def boot_id() -> str | None:
    """Return what names this boot of the host, or None where the kernel does not tell."""
    try:
        with open(BOOT_ID, encoding="ascii") as file:  # noqa: PTH123 - pathlib costs 10 ms of a cold start
            boot = file.read().strip()
        os.close(os.open(UPTIME, os.O_RDONLY))
    except OSError:
        return None
    return boot or None


class HostClock:
    """Seconds on the ledger's clock; call it for the time. ``anchor`` is set by the store when it opens the file."""

    def __init__(self) -> None:
        self.boot = boot_id()
        self.anchor = 0.0
        self._file = os.open(UPTIME, os.O_RDONLY) if self.boot else -1
        # How far the uptime is ahead of this process's own clock, and when that was found: one value, for many threads.
        self._fix = (0.0, -SECOND)

    def __call__(self) -> float:
        """Return ledger time in seconds since the epoch."""
        if self._file < 0:
            return time.time()
        ahead, found_at = self._fix
        now = boottime()
        if not 0 <= now - found_at < SECOND:
            # The clocks of the C library can be skewed for one process alone (libfaketime does it); the kernel's text
            # cannot. Their difference is good for a second, which saves nine tenths of the cost.
            ahead, now = self._fix = self._compare()
        return self.anchor + ahead + now

    def _compare(self) -> tuple[float, float]:
        for _ in range(TRIES):
            before = boottime()
            uptime = float(os.pread(self._file, 64, 0).split(b" ", 1)[0])
            after = boottime()
            if (
                0 <= after - before < RESOLUTION / 2
            ):  # else this process was paused in between, and they do not belong together
                break
        return uptime - after, after

    def anchor_now(self, newest: float) -> float:
        """Return the anchor for a boot without one: the time of day, or the newest time in the ledger if later."""
        return max(time.time(), newest) - (self() - self.anchor)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # bound now: `os` may be gone at exit
        if self._file >= 0:
            close(self._file)
