"""Finding records of a MySQL ledger by status and age, and those of a chain (:data:`FIND`, :data:`TRACE`)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from zlib import crc32

from onceward.core.drivers import Steps
from onceward.core.origin import beginning
from onceward.core.views import Criteria
from onceward.stores.contract import Page
from onceward.stores.mysql.faults import NO_TABLE
from onceward.stores.mysql.queries import MysqlQuery, PageQuery, RowsQuery, keys_within, record_in, unpacked
from onceward.stores.mysql.schema import UNFINISHED, MysqlNames
from onceward.stores.mysql.statements import NOW, OF_T, STARTED, MysqlStatements, literal, packed
from onceward.stores.sql.finding import LOOKED_AT, Dialect, next_page, printed
from onceward.stores.sql.queries import Row
from onceward.stores.sql.refusals import SqlError

if TYPE_CHECKING:
    from onceward.stores.mysql.store import MysqlStore

DIALECT: Final = Dialect(STARTED, f"({STARTED} - {{}} * 1000000)")


class FindPageQuery(MysqlQuery):
    """One page of records by status and age. It looks at a limited number of rows, in the order of their keys.

    Args:
        criteria: which records are meant.
        within: the index to look at, and the condition of its rows; None looks at all.
        prefix: the keys start with it.
        after: an earlier page's next.
        limit: the most records.
    """

    __slots__ = ("_after", "_criteria", "_prefix", "_within", "limit")

    def __init__(
        self, criteria: Criteria, within: tuple[str, str] | None, prefix: str, after: str | None, limit: int
    ) -> None:
        super().__init__("find")
        self._criteria, self._within, self._prefix, self._after, self.limit = criteria, within, prefix, after, limit

    def texts(self, statements: MysqlStatements) -> list[str]:
        """Return the statements."""
        bounds, table = keys_within(self._prefix, self._after), f"{statements.names.table} t"
        if self._within is not None:
            index, condition = self._within
            bounds, table = f"{bounds} AND {condition}", f"{table} FORCE INDEX ({index})"
        looked = f"SELECT t.`key` FROM {table} WHERE {bounds} ORDER BY t.`key` LIMIT {LOOKED_AT}"
        hits = (
            f"SELECT t.* FROM {table} WHERE {bounds} AND t.`key` <= (SELECT max(k.`key`) FROM ({looked}) k) "
            f"AND {printed(self._criteria.clause, DIALECT)} ORDER BY t.`key` LIMIT {self.limit + 1}"
        )
        tally = f"SELECT count(*) AS looked, max(k.`key`) AS last FROM ({looked}) k"
        return [
            f"SELECT {packed('x.looked', 'x.last', NOW, OF_T)} FROM ({tally}) x LEFT JOIN ({hits}) t ON true ORDER BY t.`key`"
        ]

    def reply(self, rows: Sequence[Row]) -> Page:
        """Return the page."""
        found = unpacked(rows)
        looked, last, now = found[0][:3]
        records = [record_in(fields) for _, _, _, *fields in found if fields[0] is not None]
        point = next_page([record.key for record in records], self.limit, looked, last)
        return Page(records[: self.limit], point, now / 1e6)


def find(store: "MysqlStore", criteria: Criteria, prefix: str, after: str | None, limit: int) -> Steps[Page]:
    """Read one page of the records that ``criteria`` mean, in the order of their keys."""
    names, within = store.names, None
    if criteria.are_within(UNFINISHED) and (yield from has_index(names, "open")):
        within = (index_of_ledger(names, "open"), "t.unfinished = 1")
    elif criteria.are_about_messages and (yield from has_index(names, "due")):
        within = (index_of_ledger(names, "due"), "t.due_at IS NOT NULL")
    page: Page = yield FindPageQuery(criteria, within, prefix, after, limit)
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


_SCANNING: Final = 3600.0  # seconds that reading a whole table may take


def trace(store: "MysqlStore", root: str, after: str | None, limit: int, scan: bool) -> Steps[Page | None]:
    """Read one page of the records whose chain began at ``root``. None: the index is missing, and ``scan`` is false."""
    indexed = yield from has_index(store.names, "origin")
    if not indexed and not scan:
        return None
    start = beginning(root)
    wanted = f"t.root = {crc32(start.encode())} AND left(t.origin, {len(start)}) = {literal(start)}"
    page: Page = yield PageQuery("trace", wanted, "", after, limit, None if indexed else _SCANNING)
    return page
