"""Finding the records of an SQLite ledger whose messages are due, by a partial index."""

import sqlite3
from functools import partial
from typing import Final

from onceward.core.drivers import Steps
from onceward.core.protocol import SOME_DAY
from onceward.core.record import Record
from onceward.errors import StoreError
from onceward.stores.capabilities import point_of, token_of
from onceward.stores.contract import DuePage
from onceward.stores.sqlite import damage
from onceward.stores.sqlite.requests import SqlRequest
from onceward.stores.sqlite.schema import DUE_INDEX, TABLE, has_index
from onceward.stores.sqlite.store import SqliteStore

_FIELDS: Final = ", ".join(f"+{name}" for name in Record._fields)
_INDEXED: Final = f"{TABLE} INDEXED BY {DUE_INDEX}"
DUE: Final = (
    f"SELECT {_FIELDS} FROM {_INDEXED} WHERE due_at <= ?1 AND (due_at, key) > (?2, ?3) ORDER BY due_at, key LIMIT ?4"
)
NEXT: Final = f"SELECT min(due_at) FROM {_INDEXED} WHERE due_at > ? AND due_at < ?"


def outbox(store: SqliteStore) -> Steps[None]:
    """Check that the index is there (:data:`onceward.stores.capabilities.OUTBOX`)."""
    there: bool = yield SqlRequest(partial(_is_indexed), writes=False)
    if not there:
        raise StoreError(
            f"ledger {store.path}: it has no index of messages, because an earlier version made it. Call `onceward migrate "
            f"--store {store.url}` once"
        )


def due(_: SqliteStore, after: str | None, limit: int, ahead: float) -> Steps[DuePage]:
    """Read the records whose messages are due (:data:`onceward.stores.capabilities.DUE`)."""
    page: DuePage = yield SqlRequest(partial(found, after, limit, ahead), writes=False)
    return page


def found(after: str | None, limit: int, ahead: float, connection: sqlite3.Connection, now: float) -> DuePage:
    """Read one page, and one more row to know whether it is the last."""
    rows = damage.rows(connection, DUE, (now + ahead, *point_of(after), limit + 1))
    page, place = rows[:limit], Record._fields.index("due_at")
    following = token_of(page[-1][place], str(page[-1][0])) if len(rows) > limit else None
    (at,) = connection.execute(NEXT, (now + ahead, now + SOME_DAY)).fetchone()
    records = [Record._make(row) for row in page if damage.is_whole(row)]
    damaged = [damage.damaged(row) for row in page if not damage.is_whole(row)]
    return DuePage(records, following, now, None if at is None else at - now, tuple(damaged))


def _is_indexed(connection: sqlite3.Connection, _: float) -> bool:
    return has_index(connection, DUE_INDEX)
