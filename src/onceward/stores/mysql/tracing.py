"""Finding the records of a chain in a MySQL ledger, by an index (:data:`onceward.stores.capabilities.TRACE`)."""

from typing import TYPE_CHECKING, Final
from zlib import crc32

from onceward.core.drivers import Steps
from onceward.core.origin import beginning
from onceward.stores.contract import Page
from onceward.stores.mysql.finding import has_index
from onceward.stores.mysql.literals import literal
from onceward.stores.mysql.queries import PageQuery

if TYPE_CHECKING:
    from onceward.stores.mysql.store import MysqlStore

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
