"""Finding records of an SQLite ledger by status and age (:data:`onceward.stores.capabilities.FIND`)."""

import sqlite3
from functools import partial
from typing import Final

from onceward.core.drivers import Steps
from onceward.core.record import Record
from onceward.core.views import Criteria
from onceward.errors import StoreError
from onceward.stores.contract import Page
from onceward.stores.sql.finding import FOUND, Dialect, having, looking, next_page
from onceward.stores.sqlite import damage
from onceward.stores.sqlite.requests import KEYS, SqlRequest
from onceward.stores.sqlite.schema import DUE_INDEX, STOPPED, STOPPED_INDEX, TABLE, has_index
from onceward.stores.sqlite.store import SqliteStore

_FIELDS: Final = ", ".join(f"+t.{name}" for name in Record._fields)


def find(_: SqliteStore, criteria: Criteria, prefix: str, after: str | None, limit: int) -> Steps[Page]:
    """Read one page of the records that ``criteria`` mean, in the order of their keys."""
    page: Page = yield SqlRequest(partial(found, criteria, prefix, after, limit), writes=False)
    return page


def found(
    criteria: Criteria, prefix: str, after: str | None, limit: int, connection: sqlite3.Connection, now: float
) -> Page:
    """Read one page, and one more row to know whether it is the last."""
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
    page = hits[:limit]
    records = [Record._make(row) for row in page if damage.is_whole(row)]
    damaged = [damage.damaged(row) for row in page if not damage.is_whole(row)]
    return Page(records, point, now, tuple(damaged))
