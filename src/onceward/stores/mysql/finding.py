"""Finding records of a MySQL ledger (:data:`onceward.stores.capabilities.FIND`, ``DUE``, ``TRACE``)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from zlib import crc32

from onceward.core.drivers import Steps
from onceward.core.origin import beginning
from onceward.core.protocol import SOME_DAY
from onceward.core.views import Criteria
from onceward.errors import StoreError
from onceward.stores.capabilities import point_of, token_of
from onceward.stores.contract import DuePage, Page
from onceward.stores.mysql.faults import NO_TABLE
from onceward.stores.mysql.queries import MysqlQuery, PageQuery, RowsQuery, record_in, unpacked
from onceward.stores.mysql.schema import UNFINISHED, MysqlNames
from onceward.stores.mysql.statements import NOW, OF_T, STARTED, MysqlStatements, literal, microseconds, packed
from onceward.stores.sql.queries import Row
from onceward.stores.sql.refusals import SqlError

if TYPE_CHECKING:
    from onceward.stores.mysql.store import MysqlStore

_SCANNING: Final = 3600.0  # seconds that reading a whole table may take


def find(store: "MysqlStore", criteria: Criteria, prefix: str, after: str | None, limit: int) -> Steps[Page]:
    """Read one page of the records that ``criteria`` mean, in the order of their keys."""
    names, within, index = store.names, "true", None
    if criteria.are_within(UNFINISHED) and (yield from has_index(names, "open")):
        within, index = "t.unfinished = 1", index_of_ledger(names, "open")
    elif criteria.are_about_messages and (yield from has_index(names, "due")):
        within, index = "t.due_at IS NOT NULL", index_of_ledger(names, "due")
    page: Page = yield PageQuery("find", (prefix, after), limit, criteria.clause, within, index)
    return page


def trace(store: "MysqlStore", root: str, after: str | None, limit: int, scan: bool) -> Steps[Page | None]:
    """Read one page of the records whose chain began at ``root``. None: the index is missing, and ``scan`` is false."""
    indexed = yield from has_index(store.names, "origin")
    if not indexed and not scan:
        return None
    start = beginning(root)
    within = f"t.root = {crc32(start.encode())} AND left(t.origin, {len(start)}) = {literal(start)}"
    seconds = None if indexed else _SCANNING
    page: Page = yield PageQuery("trace", ("", after), limit, within=within, seconds=seconds)
    return page


class DuePageQuery(MysqlQuery):
    """One page of records whose messages are due within ``ahead`` seconds, and one more row to know whether it is the last."""

    __slots__ = ("_after", "_ahead", "limit")

    def __init__(self, after: str | None, limit: int, ahead: float) -> None:
        super().__init__("due")
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

    def reply(self, rows: Sequence[Row]) -> DuePage:
        """Return the page."""
        found = unpacked(rows)
        wait, now = found[0][:2]
        records = [record_in(fields) for _, _, *fields in found if fields[0] is not None]
        page = records[: self.limit]
        following = token_of(page[-1].due_at or 0.0, page[-1].key) if len(records) > self.limit else None
        return DuePage(page, following, now / 1e6, None if wait is None else wait / 1e6)


def outbox(store: "MysqlStore") -> Steps[None]:
    """Check that the index is there (:data:`onceward.stores.capabilities.OUTBOX`)."""
    yield from store.load("?")  # the first use makes the ledger
    if not (yield from has_index(store.names, "due")):
        raise StoreError(
            f"ledger {store.url}: it has no index of messages. Let a user that may ALTER tables run "
            f"`onceward migrate --store {store.url}` once"
        )


def due(_: "MysqlStore", after: str | None, limit: int, ahead: float) -> Steps[DuePage]:
    """Read the records whose messages are due (:data:`onceward.stores.capabilities.DUE`)."""
    page: DuePage = yield DuePageQuery(after, limit, ahead)
    return page


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
