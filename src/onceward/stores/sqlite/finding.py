"""Finding records of an SQLite ledger by status and age, of a chain, and with messages that are due."""

import sqlite3
from collections.abc import Mapping
from typing import ClassVar, Final

from onceward.core.origin import beginning
from onceward.core.record import Record
from onceward.core.selections import ByKey, ChainOf, Selection
from onceward.core.views import ANY
from onceward.errors import StoreError
from onceward.stores.contract import Page
from onceward.stores.sql.finding import OF_T, Dialect, PageReader, end_of, having, page_of
from onceward.stores.sqlite import damage
from onceward.stores.sqlite.schema import DUE_INDEX, ORIGIN_INDEX, STOPPED, STOPPED_INDEX, TABLE, has_index

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


def select(
    selection: Selection, after: str | None, limit: int, connection: sqlite3.Connection, now: float
) -> Page | None:
    """Read one page. None: no index finds the chain, and it is not to be scanned."""
    index = None
    if isinstance(selection, ChainOf):
        return _read_chain(selection, after, limit, connection, now)
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


def _read_chain(
    chain: ChainOf, after: str | None, limit: int, connection: sqlite3.Connection, now: float
) -> Page | None:
    """Read a page of a chain in the order of its index, in which its rows are next to each other: no page reads all of them."""
    indexed = has_index(ORIGIN_INDEX, connection)
    if not indexed and not chain.scan:
        return None
    start = beginning(chain.root)
    number, _, origin = (after or "0 ").partition(" ")
    statement = (
        f"SELECT {OF_T}, t.rowid FROM {TABLE} t{f' INDEXED BY {ORIGIN_INDEX}' if indexed else ''} WHERE t.origin >= ?1 "
        "AND t.origin < ?2 AND (t.origin, t.rowid) > (?3, ?4) ORDER BY t.origin, t.rowid LIMIT ?5"
    )
    rows = damage.rows(connection, statement, (start, end_of(start), origin, int(number), limit + 1))
    records, damaged = damage.sorted_out([row[:-1] for row in rows[:limit]])
    following = f"{rows[limit - 1][-1]} {rows[limit - 1][_ORIGIN]}" if len(rows) > limit else None
    return Page(records, following, now, damaged)
