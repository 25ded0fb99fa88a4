"""What an SQLite ledger holds, in bounded time (:data:`onceward.stores.capabilities.SURVEY`)."""

import sqlite3
from functools import partial
from typing import Final

from onceward.core.drivers import Steps
from onceward.core.protocol import SOME_DAY, STATES, STATUSES
from onceward.stores.sql.finding import Dialect, having, printed
from onceward.stores.sqlite.requests import SqlRequest
from onceward.stores.sqlite.schema import DUE_INDEX, STOPPED, STOPPED_INDEX, TABLE, has_index
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


def survey(_: SqliteStore) -> Steps[Survey]:
    """Count a small ledger, and what an index has of a large one."""
    found: Survey = yield SqlRequest(partial(surveyed), writes=False)
    return found


def surveyed(connection: sqlite3.Connection, now: float) -> Survey:
    """Read the counts. Rows stay in the order of arrival, so their numbers tell how many there are at most."""
    first, last = connection.execute(_ROWS).fetchone()
    total = 0 if last is None else last - first + 1
    indexed = STOPPED if has_index(connection, STOPPED_INDEX) else frozenset()
    (expired,) = connection.execute(_EXPIRED, (now,)).fetchone()
    counts = {"EXPIRED": expired} if expired < READ else {}
    if has_index(connection, DUE_INDEX):
        counts |= zip(
            ("UNSENT", "REFUSED"), connection.execute(_MESSAGES, (now + SOME_DAY,) * 2).fetchone(), strict=True
        )
    exact = total <= READ
    if exact:
        lapsed = printed(STATES["LAPSED"], Dialect(repr(now), f"{now!r} - {{}}"))
        rows = connection.execute(f"SELECT status, count(*), sum({lapsed}) FROM {TABLE} GROUP BY status").fetchall()
        total = sum(row[1] for row in rows)
        counts |= dict.fromkeys(STATUSES, 0) | {"LAPSED": sum(row[2] or 0 for row in rows)}
    else:
        rows = connection.execute(_BY_INDEX).fetchall() if indexed else []
        counts |= dict.fromkeys(indexed, 0)
    counts |= {status: count for status, count, _ in rows if isinstance(status, str)}
    return Survey(indexed, True, counts, total, exact, last or 0, now)
