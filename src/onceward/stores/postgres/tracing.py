"""Finding the records of a chain in a PostgreSQL ledger, by a partial index (:data:`onceward.stores.capabilities.TRACE`)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from onceward.core.drivers import Steps
from onceward.core.origin import beginning
from onceward.stores.contract import Page
from onceward.stores.postgres.finding import is_indexed
from onceward.stores.postgres.queries import Query, page_of
from onceward.stores.postgres.schema import ROOT, Names
from onceward.stores.postgres.statements import FIRST
from onceward.stores.sql.columns import COLUMNS, FIELDS
from onceward.stores.sql.queries import Row

if TYPE_CHECKING:
    from onceward.stores.postgres.store import PostgresStore

_SCANNING: Final = 3600.0  # seconds that reading a whole table may take


class TraceQuery(Query):
    """One page of records of a chain, and one more row to know whether it is the last."""

    __slots__ = ("limit", "seconds")

    def __init__(self, names: Names, root: str, after: str | None, limit: int, *, scans: bool) -> None:
        fields = ", ".join(f"t.{name}" for name in FIELDS)
        start = beginning(root)
        text = (
            f"{FIRST} SELECT t.key IS NULL AND NULL, c.now, {fields} FROM c LEFT JOIN (SELECT {COLUMNS} FROM {names.table} "
            f"WHERE origin IS NOT NULL AND {ROOT.format('origin')} = {ROOT.format('$2::text')} AND starts_with(origin, $2::text) "
            "AND key > $3::text ORDER BY key LIMIT $4::bigint) t ON true ORDER BY t.key"
        )
        super().__init__("trace", text, (start, after or "", limit + 1))
        self.limit = limit
        self.seconds = _SCANNING if scans else None

    def reply(self, rows: Sequence[Row]) -> Page:
        """Return the page."""
        return page_of(rows, self.limit)


def trace(store: "PostgresStore", root: str, after: str | None, limit: int, scan: bool) -> Steps[Page | None]:
    """Read one page of the records whose chain began at ``root``. None: the index is missing, and ``scan`` is false."""
    indexed = yield from is_indexed(store.names, store.names.origin)
    if not indexed and not scan:
        return None
    page: Page = yield TraceQuery(store.names, root, after, limit, scans=not indexed)
    return page
