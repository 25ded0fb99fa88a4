"""Finding records of an SQLite ledger by status and age, and with messages that are due."""

import sqlite3
from collections.abc import Mapping
from typing import ClassVar, Final

from onceward.core.record import Record
from onceward.core.selections import ByKey, Selection
from onceward.core.views import ANY
from onceward.errors import StoreError
from onceward.stores.contract import Page
from onceward.stores.sql.finding import Dialect, PageReader, having, page_of
from onceward.stores.sqlite import damage
from onceward.stores.sqlite.schema import DUE_INDEX, STOPPED, STOPPED_INDEX, TABLE, has_index

_ORIGIN: Final = Record._fields.index("origin")


class SqliteReader(PageReader):
    """Its indexes are those of the schema, by their names there."""

    within: ClassVar[Mapping[str, str]] = {STOPPED_INDEX: having(STOPPED), DUE_INDEX: "due_at IS NOT NULL"}
    due = DUE_INDEX

    def text(self, value: str) -> str:
        self.values.append(value)
        return f"?{len(self.values)}"

    def time(self, seconds: float) -> str:
        return repr(seconds)

    def hint(self, index: str) -> str:
        return f" INDEXED BY {index}"


def reader(now: float) -> SqliteReader:
    """Return what makes the statement of a page at this time."""
    return SqliteReader(TABLE, Dialect(repr(now), f"({now!r} - {{}})"))


def select(selection: Selection, after: str | None, limit: int, connection: sqlite3.Connection, now: float) -> Page:
    """Read one page."""
    index = None
    if isinstance(selection, ByKey) and selection.criteria.are_within(STOPPED):
        index = STOPPED_INDEX
    elif isinstance(selection, ByKey) and selection.criteria.are_about_messages:
        index = DUE_INDEX
    if index is not None and not has_index(index, connection):
        index = None
    asking = reader(now)
    rows = damage.rows(connection, asking.statement(selection, after, limit, index), tuple(asking.values))
    page = page_of(selection, limit, rows, damage.sorted_out)
    if not isinstance(page.next, bytes):
        return page
    if isinstance(selection, ByKey) and selection.criteria != ANY:
        raise StoreError("a key is not UTF-8: list the records without a status and an age")
    return page._replace(next=next((row[3] for row in reversed(rows[:limit]) if isinstance(row[3], str)), None))
