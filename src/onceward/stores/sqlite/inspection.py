"""What people ask of an SQLite ledger: to make it, what it holds, and the facts about its file and its place, for doctor."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from onceward.core.drivers import Steps
from onceward.core.protocol import STATUSES
from onceward.core.views import SOME_DAY, STATES
from onceward.stores.capabilities import check_options
from onceward.stores.contract import Part
from onceward.stores.inspection import Finding
from onceward.stores.sql.columns import is_complete
from onceward.stores.sql.finding import Dialect, having, sql_of
from onceward.stores.sqlite.place import mounts
from onceward.stores.sqlite.requests import SqlRequest
from onceward.stores.sqlite.schema import (
    DUE_INDEX,
    INDEXES,
    META,
    MINOR,
    SCHEMA,
    STOPPED,
    STOPPED_INDEX,
    TABLE,
)
from onceward.stores.sqlite.store import SqliteStore
from onceward.stores.survey import READ, Survey

_ROWS: Final = f"SELECT (SELECT min(rowid) FROM {TABLE}), (SELECT max(rowid) FROM {TABLE})"
_BY_INDEX: Final = (
    f"SELECT status, count(*), 0 FROM {TABLE} INDEXED BY {STOPPED_INDEX} WHERE {having(STOPPED)} GROUP BY status"
)
_EXPIRED: Final = (
    f"SELECT count(*) FROM (SELECT 1 FROM {TABLE} WHERE expires_at IS NOT NULL AND expires_at <= ? LIMIT {READ})"
)
_MESSAGES: Final = f"SELECT coalesce(sum(due_at <= ?), 0), coalesce(sum(due_at > ?), 0) FROM {TABLE} INDEXED BY {DUE_INDEX} WHERE due_at IS NOT NULL"
_OTHER: Final = (
    "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM sqlite_master WHERE name = ?)"  # a row for a database without a ledger
)
_WAL: Final = "sqlite.org/wal.html"

_SHARED: Final = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs", "gpfs")
_FUSE: Final = ("sshfs", "glusterfs", "ceph-fuse", "s3fs", "gcsfuse", "rclone")
_NETWORK: Final = frozenset((*_SHARED, *(f"fuse.{name}" for name in _FUSE)))
_VOLATILE: Final = frozenset({"tmpfs", "ramfs"})


class File(NamedTuple):
    """A ledger in an SQLite file."""

    path: str
    kind: str | None  # the file system's kind, such as ``ext4``; None if unknown
    there: bool  # whether it is there

    @property
    def is_local(self) -> bool:
        return True

    def findings(self) -> Iterator[Finding]:
        check = "file"
        if not self.there:
            why = "a worker makes an empty ledger there: if the path is wrong, what was done before runs again"
            fix = "correct --store, or make the ledger with `onceward init`"
            yield Finding("unknown", check, f"there is no ledger at {self.path} yet", why, fix)
        if self.kind in _NETWORK:
            says = f"{self.path} is on a network file system ({self.kind})"
            why = "SQLite's locks and shared memory do not work between machines: two workers can have one key"
            fix = "put it on a disk of the machine that all workers run on, or use DynamoDB"
            yield Finding("error", check, says, why, fix, _WAL)
        elif self.kind in _VOLATILE:
            why = "it is gone after a restart, and everything that was done can be done again"
            yield Finding("warning", check, f"{self.path} is in memory ({self.kind})", why, "put it on a disk")
        elif self.kind is None:
            says = f"this system does not tell what kind of file system {self.path} is on"
            why = "on one of a network two workers can have one key"
            yield Finding("skipped", check, says, why, "make sure that it is a disk of this machine", _WAL)
        elif self.there:
            yield Finding("ok", check, f"{self.path} is on a local disk ({self.kind})")


def inspect(store: SqliteStore) -> File:
    """Return the facts (:data:`onceward.stores.capabilities.INSPECT`)."""
    folder = next(part for part in Path(store.path).parents if part.exists())
    return File(store.path, _kind(str(folder)), exists(store))


def _kind(folder: str) -> str | None:
    """Return the kind of a folder's file system, if Linux gives it."""
    real = os.path.realpath(folder) + "/"
    around = {point: kind for point, kind in mounts().items() if real.startswith(point.rstrip("/") + "/")}
    return around[max(around, key=len)] if around else None


def survey(_: SqliteStore) -> Steps[Survey]:
    """Count a small ledger, and what an index has of a large one."""
    result: Survey = yield SqlRequest(partial(count_records), writes=False)
    return result


def count_records(connection: sqlite3.Connection, now: float) -> Survey:
    """Read the counts. Rows stay in the order of arrival, so their numbers tell how many there are at most."""
    first, last = connection.execute(_ROWS).fetchone()
    total = 0 if last is None else last - first + 1
    (expired,) = connection.execute(_EXPIRED, (now,)).fetchone()
    counts = {"EXPIRED": expired} if expired < READ else {}
    counts |= zip(("UNSENT", "REFUSED"), connection.execute(_MESSAGES, (now + SOME_DAY,) * 2).fetchone(), strict=True)
    exact = total <= READ
    if exact:
        lapsed = sql_of(STATES["LAPSED"], Dialect(repr(now), f"{now!r} - {{}}"))
        rows = connection.execute(f"SELECT status, count(*), sum({lapsed}) FROM {TABLE} GROUP BY status").fetchall()
        total = sum(row[1] for row in rows)
        counts |= dict.fromkeys(STATUSES, 0) | {"LAPSED": sum(row[2] or 0 for row in rows)}
    else:
        rows = connection.execute(_BY_INDEX).fetchall()
        counts |= dict.fromkeys(STOPPED, 0)
    counts |= {status: count for status, count, _ in rows if isinstance(status, str)}
    return Survey(STOPPED, True, counts, total, exact, now)


def exists(store: SqliteStore) -> bool:
    """Return whether there is a ledger in the file, also one that cannot be read (:data:`onceward.stores.capabilities.EXISTS`)."""
    return os.path.exists(store.path) and not read(store.path, _OTHER, META)


def provision(store: SqliteStore, options: AbstractSet[str]) -> Steps[list[Part]]:
    """Make the file and its schema (:data:`onceward.stores.capabilities.PROVISION`)."""
    check_options(store.url, options)
    there = os.path.exists(store.path)
    had = bool(read(store.path, "SELECT 1 FROM sqlite_master WHERE name = ?", META))
    yield from store.load("?")  # the first use makes both
    return [Part(f"file {store.path}", not there), Part("its schema", not had)]


def migrate(store: SqliteStore) -> Steps[list[Part]]:
    """Add the columns and the indexes that an earlier version's file lacks (:data:`onceward.stores.capabilities.MIGRATE`).

    So does the first use. Nobody can write the file while SQLite makes an index.

    Raises:
        StoreError: the file is no ledger, or of another major version, or this user may not write it.
    """
    had = is_complete(dict(read(store.path, f"SELECT name, value FROM {META}")), MINOR)
    yield from store.load("?")  # the first use adds them
    return [Part("its columns and indexes", not had)]


def template(_: SqliteStore) -> str:
    """Return the SQL that makes the ledger (:data:`onceward.stores.capabilities.TEMPLATE`)."""
    return "".join(f"{statement};\n" for statement in (*SCHEMA, *INDEXES.values()))


def read(path: str, query: str, *values: str) -> list[Any]:
    """Return the rows of a query; none if the file is no database, because the store has the better error."""
    uri = f"{Path(path).as_uri()}?mode=ro"
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        return connection.execute(query, values).fetchall()
    return []
