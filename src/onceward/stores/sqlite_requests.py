"""The SQL of an SQLite ledger: what each request to it runs on the connection.

A request holds what it needs; the store chooses the connection, the time and the transaction to run it in.
"""

import sqlite3
from collections.abc import Sequence

from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED, Record, Reply, Write
from onceward.stores.contract import Page
from onceward.stores.sqlite_file import COLUMNS, TABLE

SELECT = f"SELECT {COLUMNS} FROM {TABLE} WHERE key = ?"  # noqa: S608 - constants of this module
_MARKS = ", ".join("?" * len(Record._fields))
INSERT = f"INSERT INTO {TABLE} ({COLUMNS}) VALUES ({_MARKS}) ON CONFLICT (key) DO NOTHING"  # noqa: S608 - as above
UPDATE = (
    f"UPDATE {TABLE} SET {', '.join(f'{name} = ?' for name in Record._fields[1:])} "  # noqa: S608 - as above
    "WHERE key = ? AND owner = ? AND fence = ? AND beat = ?"
)
DELETE = f"DELETE FROM {TABLE} WHERE key = ? AND owner = ? AND fence = ? AND beat = ?"  # noqa: S608 - as above
# A status that this version does not know may mean that the record is still needed.
_KNOWN = ", ".join(f"'{status}'" for status in (IN_PROGRESS, COMPLETED, RELEASED, PARKED))
PURGE = (
    f"DELETE FROM {TABLE} WHERE key IN (SELECT key FROM {TABLE} WHERE expires_at <= ? "  # noqa: S608 - as above
    f"AND status IN ({_KNOWN}) ORDER BY expires_at LIMIT ?)"
)
SCAN = f"SELECT {COLUMNS} FROM {TABLE} WHERE key > ? AND key >= ? AND key < ? ORDER BY key LIMIT ?"  # noqa: S608 - as above


class Request:
    """What one exchange does: ``run(connection, now)`` gives the reply.

    A write of a single statement is a transaction of its own; one of ``many`` statements needs one around it. One
    that wants a key to be ``absent`` looks for it first: most duplicates end there, without waiting for the write lock.
    """

    __slots__ = ()
    writes = True
    many = False
    absent: str | None = None

    def run(self, connection: sqlite3.Connection, now: float) -> object:
        """Run the SQL."""
        raise NotImplementedError


class Insert(Request):
    """Write if the key is absent."""

    __slots__ = ("absent", "write")

    def __init__(self, write: Write) -> None:
        self.absent = write.key
        self.write = write

    def run(self, connection: sqlite3.Connection, now: float) -> Reply:
        """Insert, unless that conflicts with what is there."""
        record = self.write.at(now)
        if connection.execute(INSERT, record).rowcount == 1:
            return tuple.__new__(Reply, (True, record, now))
        return Reply(False, find(connection, record.key), now)


class Swap(Request):
    """Write if the record is still the version seen."""

    __slots__ = ("seen", "write")

    def __init__(self, write: Write, seen: Record) -> None:
        self.write = write
        self.seen = seen

    def run(self, connection: sqlite3.Connection, now: float) -> Reply:
        """Update where owner, fence and beat are as seen."""
        record, seen = self.write.at(now), self.seen
        if connection.execute(UPDATE, (*record[1:], record.key, seen.owner, seen.fence, seen.beat)).rowcount == 1:
            return tuple.__new__(Reply, (True, record, now))
        return Reply(False, find(connection, record.key), now)


class Delete(Request):
    """Delete if the record is still the version seen."""

    __slots__ = ("seen",)

    def __init__(self, seen: Record) -> None:
        self.seen = seen

    def run(self, connection: sqlite3.Connection, now: float) -> Reply:
        """Delete where owner, fence and beat are as seen."""
        seen = self.seen
        if connection.execute(DELETE, (seen.key, seen.owner, seen.fence, seen.beat)).rowcount == 1:
            return Reply(True, seen, now)
        return Reply(False, find(connection, seen.key), now)


class Each(Request):
    """Several requests, each on its own merits."""

    __slots__ = ("requests",)
    many = True

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests

    def run(self, connection: sqlite3.Connection, now: float) -> list[object]:
        """Run one after another."""
        return [request.run(connection, now) for request in self.requests]


class Purge(Request):
    """Delete expired records, the longest expired first."""

    __slots__ = ("limit",)

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def run(self, connection: sqlite3.Connection, now: float) -> int:
        """Delete, and count."""
        return connection.execute(PURGE, (now, self.limit)).rowcount


class Load(Request):
    """Read one record."""

    __slots__ = ("key",)
    writes = False

    def __init__(self, key: str) -> None:
        self.key = key

    def run(self, connection: sqlite3.Connection, now: float) -> Reply:
        """Look it up."""
        return Reply(False, find(connection, self.key), now)


class Scan(Request):
    """Read records in the order of their keys."""

    __slots__ = ("after", "limit", "prefix")
    writes = False

    def __init__(self, prefix: str, after: str | None, limit: int) -> None:
        self.prefix = prefix
        self.after = after or ""
        self.limit = limit

    def run(self, connection: sqlite3.Connection, now: float) -> Page:
        """Read one page, and a row more to know whether it is the last."""
        bounds = (self.after, self.prefix, self.prefix + "\U0010ffff", self.limit + 1)
        rows = connection.execute(SCAN, bounds).fetchall()
        records = [Record._make(row) for row in rows[: self.limit]]
        return Page(records, records[-1].key if len(rows) > self.limit else None, now)


def find(connection: sqlite3.Connection, key: str) -> Record | None:
    """Return the record of a key, as the connection sees it."""
    row = connection.execute(SELECT, (key,)).fetchone()
    return None if row is None else Record._make(row)
