"""The SQL that each request to an SQLite ledger runs. The store chooses its connection, time and transaction."""

import sqlite3
from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from onceward.core.record import RARE, Record, Reply, Write
from onceward.errors import StoreError
from onceward.stores.contract import Damaged
from onceward.stores.sql.columns import KNOWN
from onceward.stores.sqlite import damage
from onceward.stores.sqlite.schema import HIGH, TABLE

# A plus makes a column an expression without a declared type, so no converter of the user's connection applies.
_FIELDS = ", ".join(f"+{name}" for name in Record._fields)
SELECT = f"SELECT {_FIELDS} FROM {TABLE} WHERE key = ?"
# Python takes 0.3 µs to bind a None, so statements for the common records leave these fields to be NULL.
_ABSENT_AT_FIRST = ("result", "error", *RARE)
_ABSENT_AT_LAST = ("error", *RARE)
_NOTHING_RARE, _FROM = (None,) * len(RARE), -len(RARE)


def _without(names: Sequence[str]) -> "tuple[tuple[str, ...], itemgetter[Any]]":
    """Return all other fields, and a function from a record to their values."""
    rest = tuple(name for name in Record._fields if name not in names)
    return rest, itemgetter(*map(Record._fields.index, rest))


def _inserts(names: Sequence[str]) -> tuple[str, str]:
    """Return the statements that insert a record, with its fence and with a fence of 0.

    A new claim's fence must exceed that of every deleted record: its time may have been read before.
    """
    columns, marks = ", ".join(names), ", ".join(f"?{number + 1}" for number in range(len(names)))
    fresh = f"WHERE ?{names.index('fence') + 1} > coalesce((SELECT fence FROM {HIGH}), 0)"
    start, end = f"INSERT INTO {TABLE} ({columns})", "ON CONFLICT (key) DO NOTHING"
    return f"{start} VALUES ({marks}) {end}", f"{start} SELECT {marks} {fresh} {end}"


def _update(names: Sequence[str]) -> str:
    fields = (f"{name} = {'?' if name in names else 'NULL'}" for name in Record._fields[1:])
    return f"UPDATE {TABLE} SET {', '.join(fields)} WHERE key = ? AND owner = ? AND fence = ? AND beat = ?"


_FIRST, _of_first = _without(_ABSENT_AT_FIRST)
_LAST, _of_last = _without(_ABSENT_AT_LAST)
INSERT, FRESH = _inserts(Record._fields)
INSERT_FIRST, FRESH_FIRST = _inserts(_FIRST)
UPDATE, UPDATE_LAST = _update(Record._fields), _update(_LAST)
HIGHEST = f"SELECT coalesce(max(fence), 0) FROM {HIGH}"
DELETE = f"DELETE FROM {TABLE} WHERE key = ? AND owner = ? AND fence = ? AND beat = ?"
PURGE = (
    f"DELETE FROM {TABLE} WHERE key IN (SELECT key FROM {TABLE} WHERE expires_at <= ? AND {KNOWN} "
    "ORDER BY expires_at LIMIT ?)"
)


class SqlRequest(NamedTuple):
    """What one exchange does: ``run(connection, now)`` returns the reply. ``run`` is a partial of a function below.

    A write of one statement is its own transaction; one of ``many`` statements needs a transaction around it. A write can
    ``look`` first, which returns its reply if there is nothing to write: most duplicates end there, without the write lock.
    """

    run: "partial[Any]"
    look: "partial[Reply | None] | None" = None
    writes: bool = True
    many: bool = False


def insert(write: Write, connection: sqlite3.Connection, now: float) -> Reply:
    """Insert if the key is absent."""
    record = write.at(now)
    plain = record.result is record.error is None and record[_FROM:] == _NOTHING_RARE
    statement = (INSERT_FIRST if plain else INSERT) if write.fence else FRESH_FIRST if plain else FRESH
    while connection.execute(statement, _of_first(record) if plain else record).rowcount != 1:
        held = find(connection, record.key)
        if held is not None:
            return Reply(False, held, now)
        record = record._replace(fence=max(record.fence, connection.execute(HIGHEST).fetchone()[0] + 1))
    return tuple.__new__(Reply, (True, record, now))


def look(write: Write, connection: sqlite3.Connection, now: float) -> Reply | None:
    """Return the reply to an insert that meets a record."""
    held = find(connection, write.key)
    return None if held is None else tuple.__new__(Reply, (False, held, now))


def swap(write: Write, seen: Record, connection: sqlite3.Connection, now: float) -> Reply:
    """Update where owner, fence and beat are as seen."""
    record = write.at(now)
    plain = record.error is None and record[_FROM:] == _NOTHING_RARE
    fields = _of_last(record) if plain else record
    bounds = (*fields[1:], record.key, *seen.version)
    if connection.execute(UPDATE_LAST if plain else UPDATE, bounds).rowcount == 1:
        return tuple.__new__(Reply, (True, record, now))
    return Reply(False, find(connection, record.key), now)


def delete(seen: Record | Damaged, connection: sqlite3.Connection, now: float) -> Reply:
    """Delete where owner, fence and beat are as seen."""
    if isinstance(seen, Damaged):
        is_deleted = connection.execute(*damage.deletion(TABLE, seen)).rowcount == 1
        return Reply(is_deleted, None if is_deleted else find(connection, seen.key), now)
    if connection.execute(DELETE, (seen.key, *seen.version)).rowcount == 1:
        return Reply(True, seen, now)
    return Reply(False, find(connection, seen.key), now)


def each(runs: "Sequence[partial[Reply]]", connection: sqlite3.Connection, now: float) -> list[Reply | StoreError]:
    """Run one after another. A damaged record fails only its own request."""
    replies: list[Reply | StoreError] = []
    for run in runs:
        try:
            replies.append(run(connection, now))
        except StoreError as error:
            replies.append(error)
    return replies


def purge(limit: int, connection: sqlite3.Connection, now: float) -> int:
    """Delete expired records, the longest expired first, and count them."""
    return connection.execute(PURGE, (now, limit)).rowcount


def load(key: str, connection: sqlite3.Connection, now: float) -> Reply:
    """Read one record."""
    return Reply(False, find(connection, key), now)


def find(connection: sqlite3.Connection, key: str) -> Record | None:
    """Return the record of a key, as the connection sees it.

    Raises:
        DamagedRecord: the row is no record.
    """
    try:
        row = connection.execute(SELECT, (key,)).fetchone()
    except sqlite3.OperationalError:  # text that is not UTF-8, or worse
        row = damage.rows(connection, SELECT, (key,))[0]
    if row is None:
        return None
    if not damage.is_whole(row):
        raise damage.damage(row)
    return tuple.__new__(Record, row)  # what Record._make(row) does, in half the time
