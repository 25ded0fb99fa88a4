"""Finding records of a PostgreSQL ledger (:data:`onceward.stores.capabilities.FIND`, ``DUE``, ``TRACE``)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from onceward.core.drivers import Steps
from onceward.core.origin import beginning
from onceward.core.protocol import SOME_DAY
from onceward.core.views import Criteria
from onceward.errors import StoreError
from onceward.stores.capabilities import point_of, token_of
from onceward.stores.contract import DuePage, Page
from onceward.stores.postgres.queries import DIALECT, OF_T, PostgresPage, Query, RawQuery, reply_of
from onceward.stores.postgres.schema import ROOT, UNFINISHED, Names
from onceward.stores.postgres.statements import FIRST
from onceward.stores.sql.columns import COLUMNS
from onceward.stores.sql.finding import having
from onceward.stores.sql.queries import Row

if TYPE_CHECKING:
    from onceward.stores.postgres.store import PostgresStore

_NOW: Final = DIALECT.now
_UNTIL: Final = f"({_NOW} + make_interval(secs => $5::float8))"
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


class DueQuery(Query):
    """One page of records whose messages are due, and one more row to know whether it is the last."""

    __slots__ = ("limit",)

    def __init__(self, names: Names, after: str | None, limit: int, ahead: float) -> None:
        text = (
            f"{FIRST} SELECT t.key IS NULL AND NULL, c.now, {OF_T}, (SELECT date_part('epoch', min(due_at) - {_NOW}) "
            f"FROM {names.table} WHERE due_at > {_UNTIL} AND due_at < {_NOW} + interval '{SOME_DAY:.0f} seconds') "
            f"FROM c LEFT JOIN (SELECT {COLUMNS} FROM {names.table} WHERE due_at <= {_UNTIL} "
            "AND (due_at, key) > (to_timestamp($2::float8), $3::text) ORDER BY due_at, key LIMIT $4::bigint) t ON true "
            "ORDER BY t.due_at, t.key"
        )
        super().__init__("due", text, (*point_of(after), limit + 1, ahead))
        self.limit = limit

    def reply(self, rows: Sequence[Row]) -> DuePage:
        """Return the page."""
        replies = [reply_of(row[:-1]) for row in rows]
        records = [reply.record for reply in replies if reply.record is not None]
        page = records[: self.limit]
        following = token_of(page[-1].due_at or 0.0, page[-1].key) if len(records) > self.limit else None
        return DuePage(page, following, replies[0].now, rows[0][-1])


def outbox(store: "PostgresStore") -> Steps[None]:
    """Check that the index is there (:data:`onceward.stores.capabilities.OUTBOX`)."""
    yield from store.load("?")  # the first use makes the ledger
    if not (yield from is_indexed(store.names, store.names.due)):
        raise StoreError(
            f"ledger {store.url}: it has no index of messages, because an earlier version made it. Let the tables' owner run "
            f"`onceward migrate --store {store.url}` once"
        )


def due(store: "PostgresStore", after: str | None, limit: int, ahead: float) -> Steps[DuePage]:
    """Read the records whose messages are due (:data:`onceward.stores.capabilities.DUE`)."""
    page: DuePage = yield DueQuery(store.names, after, limit, ahead)
    return page


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
