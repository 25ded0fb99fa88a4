"""Finding records of an SQLite ledger by status and age, of a chain, and with messages that are due."""

import sqlite3
from typing import Final

from onceward.core.origin import beginning
from onceward.core.protocol import SOME_DAY
from onceward.core.record import Record
from onceward.core.selections import ChainOf, DueWithin, Selection
from onceward.core.views import ANY, Criteria
from onceward.errors import StoreError
from onceward.stores.contract import Page, point_of, token_of
from onceward.stores.sql.finding import FOUND, Dialect, having, looking, next_page
from onceward.stores.sqlite import damage
from onceward.stores.sqlite.requests import KEYS
from onceward.stores.sqlite.schema import DUE_INDEX, ORIGIN_INDEX, STOPPED, STOPPED_INDEX, TABLE, has_index

_FIELDS: Final = ", ".join(f"+t.{name}" for name in Record._fields)
_OF_ROW: Final = ", ".join(f"+{name}" for name in Record._fields)
_DUE: Final = f"{TABLE} INDEXED BY {DUE_INDEX}"
DUE: Final = (
    f"SELECT {_OF_ROW} FROM {_DUE} WHERE due_at <= ?1 AND (due_at, key) > (?2, ?3) ORDER BY due_at, key LIMIT ?4"
)
NEXT: Final = f"SELECT min(due_at) FROM {_DUE} WHERE due_at > ? AND due_at < ?"
# Rows of one root are next to each other in the index, in the order of their row ids.
TRACED: Final = (
    f"SELECT {_OF_ROW}, rowid FROM {TABLE} {{}} WHERE origin >= ?1 AND origin < ?2 AND (origin, rowid) > (?3, ?4) "
    "ORDER BY origin, rowid LIMIT ?5"
)
_LISTED: Final = f"SELECT {_OF_ROW} FROM {TABLE} WHERE {KEYS} ORDER BY key LIMIT ?4"


def select(
    selection: Selection, after: str | None, limit: int, connection: sqlite3.Connection, now: float
) -> Page | None:
    """Read one page, and one more row to know whether it is the last. None: no index finds the chain, and it is not to be scanned."""
    if isinstance(selection, DueWithin):
        return _due(selection.seconds, after, limit, connection, now)
    if isinstance(selection, ChainOf):
        return _traced(selection, after, limit, connection, now)
    if selection.criteria == ANY:
        return _listed(selection.prefix, after, limit, connection, now)
    return _found(*selection, after, limit, connection, now)


def _listed(prefix: str, after: str | None, limit: int, connection: sqlite3.Connection, now: float) -> Page:
    bounds = (after or "", prefix, prefix + "\U0010ffff", limit + 1)
    rows = damage.rows(connection, _LISTED, bounds)
    page = rows[:limit]
    records, damaged = damage.sorted_out(page)
    keys = [row[0] for row in page if isinstance(row[0], str)]
    return Page(records, keys[-1] if len(rows) > limit and keys else None, now, damaged)


def _found(
    prefix: str, criteria: Criteria, after: str | None, limit: int, connection: sqlite3.Connection, now: float
) -> Page:
    table, keys = TABLE, KEYS
    if criteria.are_within(STOPPED) and has_index(connection, STOPPED_INDEX):
        table, keys = f"{TABLE} INDEXED BY {STOPPED_INDEX}", f"{KEYS} AND {having(STOPPED)}"
    elif criteria.are_about_messages and has_index(connection, DUE_INDEX):
        table, keys = f"{TABLE} INDEXED BY {DUE_INDEX}", f"{KEYS} AND due_at IS NOT NULL"
    looks = looking(criteria.clause, table, keys, "?4", Dialect(repr(now), f"{now!r} - {{}}"))
    statement = f"WITH {looks} SELECT {_FIELDS}, l.rows, l.last FROM {FOUND.format(table=TABLE)}"
    rows = damage.rows(connection, statement, (after or "", prefix, prefix + "\U0010ffff", limit + 1))
    looked, last = rows[0][-2:]
    hits = [row[:-2] for row in rows if row[0] is not None]
    if not all(isinstance(key, str) for key in (last or "", *(row[0] for row in hits))):
        raise StoreError("a key is not UTF-8: list the records without a status and an age")
    point = next_page([row[0] for row in hits], limit, looked, last)
    records, damaged = damage.sorted_out(hits[:limit])
    return Page(records, point, now, damaged)


def _due(ahead: float, after: str | None, limit: int, connection: sqlite3.Connection, now: float) -> Page:
    rows = damage.rows(connection, DUE, (now + ahead, *point_of(after), limit + 1))
    page, place = rows[:limit], Record._fields.index("due_at")
    following = token_of(page[-1][place], str(page[-1][0])) if len(rows) > limit else None
    (at,) = connection.execute(NEXT, (now + ahead, now + SOME_DAY)).fetchone()
    records, damaged = damage.sorted_out(page)
    return Page(records, following, now, damaged, None if at is None else at - now)


def _traced(chain: ChainOf, after: str | None, limit: int, connection: sqlite3.Connection, now: float) -> Page | None:
    indexed = has_index(connection, ORIGIN_INDEX)
    if not indexed and not chain.scan:
        return None
    start = beginning(chain.root)
    number, _, origin = (after or "0 ").partition(" ")
    end = start[:-1] + chr(ord(start[-1]) + 1)
    statement = TRACED.format(f"INDEXED BY {ORIGIN_INDEX}" if indexed else "")
    rows = damage.rows(connection, statement, (start, end, origin, int(number), limit + 1))
    following = None
    if len(rows) > limit:
        following = f"{rows[limit - 1][-1]} {rows[limit - 1][Record._fields.index('origin')]}"
    records, damaged = damage.sorted_out([row[:-1] for row in rows[:limit]])
    return Page(records, following, now, damaged)
