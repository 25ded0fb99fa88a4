"""The clock of an SQLite ledger: the kernel's uptime plus an anchor that is stored in the ledger.

SQLite runs inside each worker, so its ``now`` is the worker's wall clock. A wrong or jumping clock would steal leases and
forget records. All workers on one file share a kernel (WAL needs shared memory), so its uptime is a common clock.

The uptime is CLOCK_BOOTTIME minus the offset of this process's time namespace, which is the same in every namespace of one
kernel. /proc/uptime is not: lxcfs shows each container its own.

``wanted`` decides when the anchor moves. Ledger time never runs backwards, and never below the newest written moment.
"""

import os
import time
from typing import NamedTuple

from onceward.core.clock import boottime

BOOT_ID = "/proc/sys/kernel/random/boot_id"
OFFSETS = "/proc/self/timens_offsets"
RESOLUTION = 0.01  # seconds: workers of earlier versions on the same file count hundredths
AGREE = 2.0  # seconds by which ledger time and the time of day may differ; smaller NTP steps move nothing
CONFIRM = 60.0  # seconds between the two checks of the time of day that move a running ledger


class Move(NamedTuple):
    """Where the anchor belongs. A ``running`` ledger moves only while no process has its file open."""

    anchor: float
    skipped: float  # seconds that passed without a worker
    running: bool


def wanted(anchor: float | None, written: float, least: float, uptime: float, wall: float) -> Move | None:
    """Return where the anchor belongs, or None if it can stay.

    Args:
        anchor: the one in the ledger, or None.
        written: the newest moment of a known write, on the ledger's clock; 0 for none.
        least: the earliest ledger time to continue at, if the uptime restarted.
        uptime: the kernel's uptime now.
        wall: the time of day now.
    """
    now = None if anchor is None else anchor + uptime
    if now is None or now < written - RESOLUTION:  # another boot or host: the workers that wrote this are gone
        start = max(wall, least)
        return Move(start - uptime, start - written if written else 0.0, running=False)
    if wall <= now + AGREE:  # right, or ahead: it never goes back
        return None
    return Move(wall - uptime, wall - now, running=True)


class HostClock:
    """Seconds on the ledger's clock; call it for the time. The file sets its anchor when it opens a connection.

    Without a boot id (not Linux), ledger time is the system clock that all processes share.
    """

    def __init__(self) -> None:
        self.boot = boot_id()
        self._offset = 0.0
        self._start = 0.0  # ledger time at the zero of this process's CLOCK_BOOTTIME

    def __call__(self) -> float:
        """Return ledger time in seconds since the epoch."""
        return self._start + boottime() if self.boot else time.time()

    def uptime(self) -> float:
        """Return the kernel's uptime in seconds, the same in every time namespace."""
        return boottime() - self._offset

    def look(self) -> None:
        """Update the time namespace's offset, which a fork may have changed."""
        if _namespace("time") == _namespace("time_for_children"):  # the kernel shows only the children's offset
            self._offset = namespace_offset()

    def set(self, anchor: float) -> None:
        """Count from ``anchor``."""
        self._start = anchor - self._offset


def boot_id() -> str | None:
    """Return the id of this boot of the host, or None if the kernel gives none."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    return _text(BOOT_ID).strip() or None


def namespace_offset() -> float:
    """Return how many seconds CLOCK_BOOTTIME is ahead of the kernel's uptime in this process's time namespace."""
    for line in _text(OFFSETS).splitlines():
        clock, seconds, nanoseconds = line.split()
        if clock in {"boottime", str(getattr(time, "CLOCK_BOOTTIME", 7))}:  # Linux 5.6 writes its number
            return int(seconds) + int(nanoseconds) / 1e9
    return 0.0


def _namespace(name: str) -> str | None:
    try:
        return os.readlink(f"/proc/self/ns/{name}")
    except OSError:
        return None


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read().decode()
    except OSError:
        return ""
