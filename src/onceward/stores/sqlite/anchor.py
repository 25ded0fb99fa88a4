"""The anchor of an SQLite ledger's clock, stored in the file: set at a new boot, moved forwards if it is wrong."""

import sqlite3
import time
from collections.abc import Mapping
from typing import NamedTuple

from onceward.stores.sqlite.clock import AGREE, CONFIRM, HostClock, Move, wanted
from onceward.stores.sqlite.schema import HIGH, META, TABLE

MARK_EVERY = 10.0  # seconds: how often a worker that writes puts ledger time into the file
COUNTED = 3600.0  # seconds: a longer gap without a worker does not count towards retention

MARK = f"UPDATE {HIGH} SET written = max(written, ?)"


class Anchor(NamedTuple):
    """What the file says about its clock."""

    boot: str | None
    anchor: float | None
    seen: tuple[float, float] | None  # a time of day that was ahead (minus the uptime), and the uptime then
    written: float
    least: float


def read(connection: sqlite3.Connection, meta: Mapping[str, str] | None = None) -> Anchor:
    """Read the anchor. The schema must exist. ``meta`` is a fresh result of :func:`read_meta`, if there is one."""
    if meta is None:
        meta = dict(connection.execute(f"SELECT name, value FROM {META}"))
    marked = connection.execute(f"SELECT max(written) FROM {HIGH}").fetchone()[0] or 0.0
    newest = connection.execute(f"SELECT created_at FROM {TABLE} ORDER BY rowid DESC LIMIT 1").fetchone()
    created = newest[0] if newest and isinstance(newest[0], float) else 0.0
    seen = meta.get("seen", "").split()
    return Anchor(
        boot=meta.get("boot"),
        anchor=float(meta["anchor"]) if "anchor" in meta else None,
        seen=(float(seen[0]), float(seen[1])) if len(seen) == 2 else None,
        written=max(marked, created),
        least=max(marked + MARK_EVERY if marked else 0.0, created),  # the next mark may have been due
    )


def move(host: HostClock, found: Anchor) -> Move | None:
    """Return where the anchor belongs now, or None."""
    # Other processes may use an anchor of this boot, even one that an earlier version set too low.
    written = 0.0 if found.boot == host.boot else found.written
    return wanted(found.anchor, written, found.least, host.uptime(), time.time())


def set_for_boot(connection: sqlite3.Connection, host: HostClock) -> None:
    """In an open transaction: anchor the clock on its first boot, or on a new one."""
    found = read(connection)
    to = move(host, found)
    if to is None and found.anchor is not None:
        _write(connection, host, found.anchor)  # the boot id changed, but the clock is right
    elif to is not None and not to.running:
        _keep(connection, found.written, to.skipped)
        _write(connection, host, to.anchor)


def is_set(found: Anchor, host: HostClock) -> bool:
    """Return whether the clock is anchored for this boot, or must wait until no process has the file open."""
    to = move(host, found)
    return found.boot == host.boot if to is None else to.running


def confirmed(connection: sqlite3.Connection, found: Anchor, host: HostClock) -> bool:
    """Return whether a running ledger is behind the time of day. Needs two checks; the file stores the first."""
    to = move(host, found)
    if to is None:
        return False
    if found.boot != host.boot:
        return True  # a new boot with a longer uptime than the last boot
    if found.seen is not None and abs(found.seen[0] - to.anchor) <= AGREE:
        return host.uptime() - found.seen[1] >= CONFIRM
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
        found = read(connection)
        to = move(host, found)
        if to is not None and found.anchor is not None:
            before = found.anchor + host.uptime()
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
