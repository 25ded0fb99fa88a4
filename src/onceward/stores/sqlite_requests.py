"""The SQL of an SQLite ledger: what each request to it runs on the connection.

A request's ``run(connection, now)`` gives its reply; the store chooses the connection, the time and the transaction.
"""

import sqlite3
from collections.abc import Callable, Sequence
from typing import NamedTuple

from onceward.core.record import Record, Reply, Write
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
PURGE = f"DELETE FROM {TABLE} WHERE key IN (SELECT key FROM {TABLE} WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)"  # noqa: S608 - as above
SCAN = f"SELECT {COLUMNS} FROM {TABLE} WHERE key > ? AND key >= ? AND key < ? ORDER BY key LIMIT ?"  # noqa: S608 - as above


Run = Callable[[sqlite3.Connection, float], object]


class Request(NamedTuple):
    """What one exchange does: ``run(connection, now)`` gives the reply.

    A write of a single statement is a transaction of its own; one of ``many`` statements needs one around it. An insert
    looks for its ``key`` first: most duplicates end there, without waiting for the write lock.
    """

    run: Run
    writes: bool
    many: bool = False
    key: str | None = None


def insert(write: Write) -> Request:
    """Write if the key is absent."""
    return Request(lambda c, now: _insert(c, now, write), writes=True, key=write.key)


def insert_many(writes: Sequence[Write]) -> Request:
    """Insert each on its own merits."""
    return Request(lambda c, now: [_insert(c, now, write) for write in writes], writes=True, many=True)


def swap(write: Write, seen: Record) -> Request:
    """Write if the record is still the version seen."""
    return Request(lambda c, now: _swap(c, now, write, seen), writes=True)


def swap_many(pairs: Sequence[tuple[Write, Record]]) -> Request:
    """Swap each on its own merits."""
    return Request(lambda c, now: [_swap(c, now, write, seen) for write, seen in pairs], writes=True, many=True)


def load(key: str) -> Request:
    """Read one record."""
    return Request(lambda c, now: Reply(False, held(c, key), now), writes=False)


def scan(prefix: str, after: str | None, limit: int) -> Request:
    """Read records in the order of their keys."""
    return Request(lambda c, now: _scan(c, now, prefix, after, limit), writes=False)


def delete(seen: Record) -> Request:
    """Delete if the record is still the version seen."""
    return Request(lambda c, now: _delete(c, now, seen), writes=True)


def purge(limit: int) -> Request:
    """Delete expired records, the longest expired first."""
    return Request(lambda c, now: c.execute(PURGE, (now, limit)).rowcount, writes=True)


def held(connection: sqlite3.Connection, key: str) -> Record | None:
    """Return the record of a key, as the connection sees it."""
    row = connection.execute(SELECT, (key,)).fetchone()
    return None if row is None else Record._make(row)


def _insert(connection: sqlite3.Connection, now: float, write: Write) -> Reply:
    record = write.at(now)
    if connection.execute(INSERT, record).rowcount == 1:
        return Reply(True, record, now)
    return Reply(False, held(connection, write.key), now)


def _swap(connection: sqlite3.Connection, now: float, write: Write, seen: Record) -> Reply:
    record = write.at(now)
    if connection.execute(UPDATE, (*record[1:], record.key, seen.owner, seen.fence, seen.beat)).rowcount == 1:
        return Reply(True, record, now)
    return Reply(False, held(connection, write.key), now)


def _delete(connection: sqlite3.Connection, now: float, seen: Record) -> Reply:
    if connection.execute(DELETE, (seen.key, seen.owner, seen.fence, seen.beat)).rowcount == 1:
        return Reply(True, seen, now)
    return Reply(False, held(connection, seen.key), now)


def _scan(connection: sqlite3.Connection, now: float, prefix: str, after: str | None, limit: int) -> Page:
    rows = connection.execute(SCAN, (after or "", prefix, prefix + "\U0010ffff", limit + 1)).fetchall()
    records = [Record._make(row) for row in rows[:limit]]
    return Page(records, records[-1].key if len(rows) > limit else None, now)
