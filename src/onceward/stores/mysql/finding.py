"""Finding records of a MySQL ledger by status and age, or of a chain (:data:`onceward.stores.capabilities.FIND`, ``TRACE``)."""

from typing import TYPE_CHECKING, Final
from zlib import crc32

from onceward.core.drivers import Steps
from onceward.core.origin import beginning
from onceward.core.views import Criteria
from onceward.stores.contract import Page
from onceward.stores.mysql.faults import NO_TABLE
from onceward.stores.mysql.queries import PageQuery, RowsQuery
from onceward.stores.mysql.schema import UNFINISHED, MysqlNames
from onceward.stores.mysql.statements import literal
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
