"""Rows that are not records: another program wrote them. SQLite keeps any type in any column."""

import sqlite3
from collections.abc import Sequence
from operator import contains
from typing import Any, Final

from onceward.core.record import Record
from onceward.stores.contract import Damaged, DamagedRecord

WHY: Final = "a column has a value of another type, or text that is not UTF-8"
_TEXT, _TIME = frozenset({str, type(None)}), frozenset({float, type(None)})
_NEEDED: Final = {
    **dict.fromkeys(("key", "status", "owner"), frozenset({str})),
    **dict.fromkeys(("fence", "beat", "attempts"), frozenset({int})),
    **dict.fromkeys(("lease_until", "created_at"), frozenset({float})),
    **dict.fromkeys(("expires_at", "updated_at", "due_at"), _TIME),
}
_ALLOWED: Final = tuple(_NEEDED.get(name, _TEXT) for name in Record._fields)
_WHOLE: Final[set[tuple[type, ...]]] = set()  # the types of records seen so far: there are few such sets


def is_whole(row: tuple[object, ...]) -> bool:
    """Return whether a row is a record."""
    kinds = tuple(map(type, row))
    if kinds in _WHOLE:
        return True
    if len(kinds) != len(_ALLOWED) or not all(map(contains, _ALLOWED, kinds)):
        return False
    _WHOLE.add(kinds)
    return True


def damaged(row: tuple[Any, ...]) -> Damaged:
    """Return what is known of a row that is not a record."""
    key = row[0]
    return Damaged(key if isinstance(key, str) else repr(key), WHY, row)


def sorted_out(rows: Sequence[tuple[Any, ...]]) -> tuple[list[Record], tuple[Damaged, ...]]:
    """Return the records among rows, and what is known of the others."""
    records = [Record._make(row) for row in rows if is_whole(row)]
    return records, tuple(damaged(row) for row in rows if not is_whole(row))


def damage(row: tuple[Any, ...]) -> DamagedRecord:
    """Return the error for a row that is not a record."""
    seen = damaged(row)
    return DamagedRecord(
        f"{seen.key}: the ledger has a record of this key that cannot be read: {WHY}. Look at it with the sqlite3 shell, or "
        "clear the key, so that the next delivery runs",
        seen,
    )


def rows(connection: sqlite3.Connection, statement: str, bounds: tuple[object, ...]) -> list[tuple[Any, ...]]:
    """Return all rows, with text that is not UTF-8 as bytes."""
    try:
        return connection.execute(statement, bounds).fetchall()
    except sqlite3.OperationalError as error:
        if "decode" not in str(error):  # Python gives no error code for it
            raise
    factory, connection.text_factory = connection.text_factory, _decoded
    try:
        return connection.execute(statement, bounds).fetchall()
    finally:
        connection.text_factory = factory


def deletion(table: str, seen: Damaged) -> tuple[str, tuple[object, ...]]:
    """Return the statement that deletes a damaged row if it has not changed, and its parameters."""
    # Compare bytes: text that is not UTF-8 cannot be passed as text.
    assert isinstance(seen.seen, tuple)
    row = tuple(value.encode() if isinstance(value, str) else value for value in seen.seen)
    terms = (
        f"CAST({name} AS BLOB) IS ?" if isinstance(value, bytes) else f"{name} IS ?"
        for name, value in zip(Record._fields, row, strict=True)
    )
    return f"DELETE FROM {table} WHERE {' AND '.join(terms)}", row


def _decoded(text: bytes) -> str | bytes:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text
