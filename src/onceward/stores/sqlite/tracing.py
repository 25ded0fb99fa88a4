"""Finding the records of a chain in an SQLite ledger, by a partial index (:data:`onceward.stores.capabilities.TRACE`)."""

import sqlite3
from functools import partial
from typing import Final

from onceward.core.drivers import Steps
from onceward.core.origin import beginning
from onceward.core.record import Record
from onceward.stores.contract import Page
from onceward.stores.sqlite import damage
from onceward.stores.sqlite.requests import SqlRequest
from onceward.stores.sqlite.schema import ORIGIN_INDEX, TABLE, has_index
from onceward.stores.sqlite.store import SqliteStore

_FIELDS: Final = ", ".join(f"+{name}" for name in Record._fields)
# Rows of one root are next to each other in the index, in the order of their row ids.
TRACED: Final = (
    f"SELECT {_FIELDS}, rowid FROM {TABLE} {{}} WHERE origin >= ?1 AND origin < ?2 AND (origin, rowid) > (?3, ?4) "
    "ORDER BY origin, rowid LIMIT ?5"
)


def trace(_: SqliteStore, root: str, after: str | None, limit: int, scan: bool) -> Steps[Page | None]:
    """Read one page of the records whose chain began at ``root``. None: the index is missing, and ``scan`` is false."""
    page: Page | None = yield SqlRequest(partial(traced, root, after, limit, scan), writes=False)
    return page


def traced(
    root: str, after: str | None, limit: int, scan: bool, connection: sqlite3.Connection, now: float
) -> Page | None:
    """Read one page, and one more row to know whether it is the last."""
    indexed = has_index(connection, ORIGIN_INDEX)
    if not indexed and not scan:
        return None
    start = beginning(root)
    row, _, origin = (after or "0 ").partition(" ")
    end = start[:-1] + chr(ord(start[-1]) + 1)
    statement = TRACED.format(f"INDEXED BY {ORIGIN_INDEX}" if indexed else "")
    rows = damage.rows(connection, statement, (start, end, origin, int(row), limit + 1))
    page = [found[:-1] for found in rows[:limit]]
    following = None
    if len(rows) > limit:
        following = f"{rows[limit - 1][-1]} {rows[limit - 1][Record._fields.index('origin')]}"
    records = [Record._make(found) for found in page if damage.is_whole(found)]
    damaged = [damage.damaged(found) for found in page if not damage.is_whole(found)]
    return Page(records, following, now, tuple(damaged))
