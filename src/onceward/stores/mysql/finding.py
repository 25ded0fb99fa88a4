"""Finding records of a MySQL ledger by status and age, of a chain, and with messages that are due."""

from collections.abc import Sequence
from typing import Final
from zlib import crc32

from onceward.core.drivers import Steps
from onceward.core.origin import beginning
from onceward.core.protocol import SOME_DAY
from onceward.core.selections import ChainOf, DueWithin, Selection
from onceward.core.views import ANY
from onceward.stores.contract import NoIndex, Page, point_of, token_of
from onceward.stores.mysql.faults import NO_TABLE
from onceward.stores.mysql.queries import MysqlQuery, PageQuery, RowsQuery, record_in, unpacked
from onceward.stores.mysql.schema import UNFINISHED, MysqlNames
from onceward.stores.mysql.statements import NOW, OF_T, STARTED, MysqlStatements, literal, microseconds, packed
from onceward.stores.sql.queries import Row
from onceward.stores.sql.refusals import SqlError

_SCANNING: Final = 3600.0  # seconds that reading a whole table may take


def select(names: MysqlNames, selection: Selection, after: str | None, limit: int) -> Steps[Page]:
    """Read one page of what is selected. Its clause is not printed if it means all."""
    if isinstance(selection, DueWithin):
        query: MysqlQuery = DuePageQuery(after, limit, selection.seconds)
    elif isinstance(selection, ChainOf):
        indexed = yield from has_index(names, "origin")
        if not indexed and not selection.scan:
            raise NoIndex(f"{names.table} has no index of origins: let a user that may ALTER it run `onceward migrate`")
        start = beginning(selection.root)
        within = f"t.root = {crc32(start.encode())} AND left(t.origin, {len(start)}) = {literal(start)}"
        query = PageQuery("select", ("", after), limit, within=within, seconds=None if indexed else _SCANNING)
    else:
        prefix, criteria = selection
        clause, within, index = None if criteria == ANY else criteria.clause, "true", None
        if criteria.are_within(UNFINISHED) and (yield from has_index(names, "open")):
            within, index = "t.unfinished = 1", index_of_ledger(names, "open")
        elif criteria.are_about_messages and (yield from has_index(names, "due")):
            within, index = "t.due_at IS NOT NULL", index_of_ledger(names, "due")
        query = PageQuery("select", (prefix, after), limit, clause, within, index)
    page: Page = yield query
    return page


class DuePageQuery(MysqlQuery):
    """One page of records whose messages are due within ``ahead`` seconds, and one more row to know whether it is the last."""

    __slots__ = ("_after", "_ahead", "limit")

    def __init__(self, after: str | None, limit: int, ahead: float) -> None:
        super().__init__("select")
        self._after, self.limit, self._ahead = after, limit, ahead

    def texts(self, statements: MysqlStatements) -> list[str]:
        """Return the statements."""
        due_at, key = point_of(self._after)
        since = microseconds(due_at)
        table = f"{statements.names.table} t FORCE INDEX ({index_of_ledger(statements.names, 'due')})"
        until = f"{STARTED} + {microseconds(self._ahead)}"
        soon = f"t.due_at > {until} AND t.due_at < {STARTED} + {microseconds(SOME_DAY)}"
        page = (
            f"SELECT t.* FROM {table} WHERE t.due_at >= {since} AND t.due_at <= {until} "
            f"AND (t.due_at > {since} OR t.`key` > {literal(key)}) ORDER BY t.due_at, t.`key` LIMIT {self.limit + 1}"
        )
        wait = f"SELECT min(t.due_at) - {STARTED} AS wait FROM {table} WHERE {soon}"
        ordered = "ON true ORDER BY t.due_at, t.`key`"
        return [f"SELECT {packed('x.wait', NOW, OF_T)} FROM ({wait}) x LEFT JOIN ({page}) t {ordered}"]

    def reply(self, rows: Sequence[Row]) -> Page:
        """Return the page."""
        found = unpacked(rows)
        wait, now = found[0][:2]
        records = [record_in(fields) for _, _, *fields in found if fields[0] is not None]
        page = records[: self.limit]
        following = token_of(page[-1].due_at or 0.0, page[-1].key) if len(records) > self.limit else None
        return Page(page, following, now / 1e6, wait=None if wait is None else wait / 1e6)


def index_of_ledger(names: MysqlNames, index: str) -> str:
    """Return the name of an index, quoted."""
    return f"`{names.plain}_{index}`"


def has_index(names: MysqlNames, index: str) -> Steps[bool]:
    """Return whether an index of the ledger is there."""
    try:
        rows = yield RowsQuery(f"SHOW INDEX FROM {names.table} WHERE Key_name = '{names.plain}_{index}'")
    except SqlError as error:
        if error.state not in NO_TABLE:  # which the next request makes
            raise
        return False
    return bool(rows)
