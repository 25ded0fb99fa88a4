"""The clock of an SQLite ledger: the kernel's uptime plus an anchor that is stored in the ledger.

SQLite runs inside each worker, so its ``now`` is the worker's wall clock. A wrong or jumping clock would steal leases and
forget records. All workers on one file share a kernel (WAL needs shared memory), so its uptime is a common clock.

The uptime is CLOCK_BOOTTIME minus the offset of this process's time namespace, which is the same in every namespace of one
kernel. /proc/uptime is not: lxcfs shows each container its own.

``find_move`` decides when the anchor moves. Ledger time never runs backwards, and never below the newest written moment.
"""

import os
import sqlite3
import time
from collections.abc import Mapping
from typing import NamedTuple

from onceward.core.clock import boottime
from onceward.stores.sqlite.schema import HIGH, META, TABLE

BOOT_ID = "/proc/sys/kernel/random/boot_id"
OFFSETS = "/proc/self/timens_offsets"
RESOLUTION = 0.01  # seconds: workers of earlier versions on the same file count hundredths
AGREE = 2.0  # seconds by which ledger time and the time of day may differ; smaller NTP steps move nothing
MARK_EVERY = 10.0  # seconds: how often a worker that writes puts ledger time into the file
COUNTED = 3600.0  # seconds: a longer gap without a worker does not count towards retention

MARK = f"UPDATE {HIGH} SET written = max(written, ?)"
CONFIRM = 60.0  # seconds between the two checks of the time of day that move a running ledger


class Move(NamedTuple):
    """Where the anchor belongs. A ``running`` ledger moves only while no process has its file open."""

    anchor: float
    skipped: float  # seconds that passed without a worker
    running: bool


def find_move(anchor: float | None, last_write: float, least: float, uptime: float, wall: float) -> Move | None:
    """Return where the anchor belongs, or None if it can stay.

    Args:
        anchor: the one in the ledger, or None.
        last_write: the newest moment of a known write, on the ledger's clock; 0 for none.
        least: the earliest ledger time to continue at, if the uptime restarted.
        uptime: the kernel's uptime now.
        wall: the time of day now.
    """
    now = None if anchor is None else anchor + uptime
    if now is None or now < last_write - RESOLUTION:  # another boot or host: the workers that wrote this are gone
        start = max(wall, least)
        return Move(start - uptime, start - last_write if last_write else 0.0, running=False)
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
    """Return the id of this boot of the host, or None if the system counts no uptime.

    Where /proc does not show it, it is an id of its own: the uptime counts all the same, and a reboot is seen by the newest write.
    """
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    return _text(BOOT_ID).strip() or f"unknown {os.urandom(8).hex()}"


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


# --- the anchor in the file: set at a new boot, moved forwards if it is wrong ------------------------------------------


class ClockState(NamedTuple):
    """What the file says about its clock."""

    boot: str | None
    anchor: float | None
    seen: tuple[float, float] | None  # a time of day that was ahead (minus the uptime), and the uptime then
    last_write: float
    least: float


def read(connection: sqlite3.Connection, meta: Mapping[str, str] | None = None) -> ClockState:
    """Read the anchor. The schema must exist. ``meta`` is a fresh result of :func:`read_meta`, if there is one."""
    if meta is None:
        meta = dict(connection.execute(f"SELECT name, value FROM {META}"))
    marked = connection.execute(f"SELECT max(written) FROM {HIGH}").fetchone()[0] or 0.0
    newest = connection.execute(f"SELECT created_at FROM {TABLE} ORDER BY rowid DESC LIMIT 1").fetchone()
    created = newest[0] if newest and isinstance(newest[0], float) else 0.0
    seen = meta.get("seen", "").split()
    return ClockState(
        boot=meta.get("boot"),
        anchor=float(meta["anchor"]) if "anchor" in meta else None,
        seen=(float(seen[0]), float(seen[1])) if len(seen) == 2 else None,
        last_write=max(marked, created),
        least=max(marked + MARK_EVERY if marked else 0.0, created),  # the next mark may have been due
    )


def move(host: HostClock, state: ClockState) -> Move | None:
    """Return where the anchor belongs now, or None."""
    # Other processes may use an anchor of this boot, even one that an earlier version set too low.
    last_write = 0.0 if state.boot == host.boot else state.last_write
    return find_move(state.anchor, last_write, state.least, host.uptime(), time.time())


def set_for_boot(connection: sqlite3.Connection, host: HostClock) -> None:
    """In an open transaction: anchor the clock on its first boot, or on a new one."""
    state = read(connection)
    to = move(host, state)
    if to is None and state.anchor is not None:
        _write(connection, host, state.anchor)  # the boot id changed, but the clock is right
    elif to is not None and not to.running:
        _keep(connection, state.last_write, to.skipped)
        _write(connection, host, to.anchor)


def is_set(state: ClockState, host: HostClock) -> bool:
    """Return whether the clock is anchored for this boot, or must wait until no process has the file open."""
    to = move(host, state)
    return state.boot == host.boot if to is None else to.running


def is_confirmed(connection: sqlite3.Connection, state: ClockState, host: HostClock) -> bool:
    """Return whether a running ledger is behind the time of day. Needs two checks; the file stores the first."""
    to = move(host, state)
    if to is None:
        return False
    if state.boot != host.boot:
        return True  # a new boot with a longer uptime than the last boot
    if state.seen is not None and abs(state.seen[0] - to.anchor) <= AGREE:
        return host.uptime() - state.seen[1] >= CONFIRM
    try:
        connection.execute(
            f"INSERT OR REPLACE INTO {META} VALUES ('seen', ?)",
            (f"{to.anchor!r} {host.uptime()!r}",),
        )
    except sqlite3.OperationalError:  # the next process to open the file stores it
        pass
    return False


def step(connection: sqlite3.Connection, host: HostClock) -> None:
    """Move the anchor of a running ledger forwards, if only this new connection has the file open.

    A process that has it open uses the old anchor: it would see others' leases as lapsed, or lose its own.
    """
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        state = read(connection)
        to = move(host, state)
        if to is not None and state.anchor is not None:
            before = state.anchor + host.uptime()
            # Claims of workers that closed the file keep their length; some hosts give each container a boot id.
            counted = to.skipped if to.skipped <= COUNTED else 0.0
            connection.execute(
                f"UPDATE {TABLE} SET lease_until = lease_until + ?, expires_at = expires_at + ? WHERE lease_until > ?",
                (to.skipped, counted, before),
            )
            _keep(connection, before, to.skipped)
            _write(connection, host, to.anchor)
        connection.execute("COMMIT")
    except sqlite3.OperationalError:  # another process has it open
        pass


def _keep(connection: sqlite3.Connection, before: float, skipped: float) -> None:
    """After a long gap, let records expire later by the gap: the clock was wrong, or no worker answered duplicates."""
    if skipped > COUNTED:
        connection.execute(
            f"UPDATE {TABLE} SET expires_at = expires_at + ? WHERE expires_at > ?",
            (skipped, before),
        )


def _write(connection: sqlite3.Connection, host: HostClock, anchor: float) -> None:
    connection.executemany(
        f"INSERT OR REPLACE INTO {META} VALUES (?, ?)",
        [("boot", host.boot), ("anchor", repr(anchor))],
    )
