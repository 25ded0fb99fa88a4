"""Finding records of a PostgreSQL ledger by status and age, or of a chain (:data:`onceward.stores.capabilities.FIND`, ``TRACE``)."""

from typing import TYPE_CHECKING, Final

from onceward.core.drivers import Steps
from onceward.core.origin import beginning
from onceward.core.views import Criteria
from onceward.stores.contract import Page
from onceward.stores.postgres.queries import PostgresPage, RawQuery
from onceward.stores.postgres.schema import ROOT, UNFINISHED, Names
from onceward.stores.sql.finding import having

if TYPE_CHECKING:
    from onceward.stores.postgres.store import PostgresStore

_SCANNING: Final = 3600.0  # seconds that reading a whole table may take
_OF_CHAIN: Final = (
    f"origin IS NOT NULL AND {ROOT.format('origin')} = {ROOT.format('$6::text')} AND starts_with(origin, $6::text)"
)
# An index that is still being built, or whose building was stopped, finds nothing.
# Of this very table: on a search path, another schema can have a ledger with an index of that name.
_INDEXES: Final = (
    "FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
    "WHERE i.indrelid = to_regclass($1::text) AND c.relname = $2::text"
)
_USABLE: Final = f"SELECT coalesce((SELECT bool_or(i.indisvalid) {_INDEXES}), false)"
_NAMED: Final = f"SELECT (SELECT i.indexrelid::regclass::text {_INDEXES})"


def find(store: "PostgresStore", criteria: Criteria, prefix: str, after: str | None, limit: int) -> Steps[Page]:
    """Read one page of the records that ``criteria`` mean, in the order of their keys."""
    names, within = store.names, None
    if criteria.are_within(UNFINISHED) and (yield from is_indexed(names, names.open)):
        within = having(UNFINISHED)
    elif criteria.are_about_messages and (yield from is_indexed(names, names.due)):
        within = "due_at IS NOT NULL"
    page: Page = yield PostgresPage("find", names.table, (prefix, after), limit, criteria.clause, within)
    return page


def trace(store: "PostgresStore", root: str, after: str | None, limit: int, scan: bool) -> Steps[Page | None]:
    """Read one page of the records whose chain began at ``root``. None: the index is missing, and ``scan`` is false."""
    names = store.names
    indexed = yield from is_indexed(names, names.origin)
    if not indexed and not scan:
        return None
    page: Page = yield chain_query(names, root, after, limit, None if indexed else _SCANNING)
    return page


def chain_query(names: Names, root: str, after: str | None, limit: int, seconds: float | None) -> PostgresPage:
    """Return the query of a page of a chain."""
    return PostgresPage("trace", names.table, ("", after), limit, None, _OF_CHAIN, [beginning(root)], seconds)


def is_indexed(names: Names, index: str) -> Steps[bool]:
    """Return whether an index of the ledger is there, and complete."""
    ((usable,),) = yield RawQuery(_USABLE, names.table, _plain(index))
    return usable is True


def index_of(names: Names, index: str) -> Steps[str | None]:
    """Return the name by which SQL finds an index of the ledger, also an incomplete one; None if it is not there."""
    ((name,),) = yield RawQuery(_NAMED, names.table, _plain(index))
    return None if name is None else str(name)


def _plain(index: str) -> str:
    return index.rpartition(".")[2].strip('"')
