"""Finding records of a PostgreSQL ledger by status and age, of a chain, and with messages that are due."""

from collections.abc import Sequence
from typing import Final

from onceward.core.drivers import Steps
from onceward.core.origin import beginning
from onceward.core.protocol import SOME_DAY
from onceward.core.selections import ChainOf, DueWithin, Selection
from onceward.core.views import ANY
from onceward.stores.contract import NoIndex, Page, point_of, token_of
from onceward.stores.postgres.queries import DIALECT, OF_T, PostgresPage, Query, RawQuery, reply_of
from onceward.stores.postgres.schema import ROOT, UNFINISHED, Names
from onceward.stores.postgres.statements import FIRST
from onceward.stores.sql.columns import COLUMNS
from onceward.stores.sql.finding import having
from onceward.stores.sql.queries import Row

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


def select(names: Names, selection: Selection, after: str | None, limit: int) -> Steps[Page]:
    """Read one page of what is selected. Its clause is not printed if it means all."""
    if isinstance(selection, DueWithin):
        query: Query = DueQuery(names, after, limit, selection.seconds)
    elif isinstance(selection, ChainOf):
        indexed = yield from is_indexed(names, names.origin)
        if not indexed and not selection.scan:
            raise NoIndex(f"{names.table} has no index {names.origin}: let its owner run `onceward migrate`")
        query = chain_query(names, selection.root, after, limit, None if indexed else _SCANNING)
    else:
        prefix, criteria = selection
        clause, within = None if criteria == ANY else criteria.clause, None
        if criteria.are_within(UNFINISHED) and (yield from is_indexed(names, names.open)):
            within = having(UNFINISHED)
        elif criteria.are_about_messages and (yield from is_indexed(names, names.due)):
            within = "due_at IS NOT NULL"
        query = PostgresPage("select", names.table, (prefix, after), limit, clause, within)
    page: Page = yield query
    return page


def chain_query(names: Names, root: str, after: str | None, limit: int, seconds: float | None) -> PostgresPage:
    """Return the query of a page of a chain."""
    return PostgresPage("select", names.table, ("", after), limit, None, _OF_CHAIN, [beginning(root)], seconds)


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
        super().__init__("select", text, (*point_of(after), limit + 1, ahead))
        self.limit = limit

    def reply(self, rows: Sequence[Row]) -> Page:
        """Return the page."""
        replies = [reply_of(row[:-1]) for row in rows]
        records = [reply.record for reply in replies if reply.record is not None]
        page = records[: self.limit]
        following = token_of(page[-1].due_at or 0.0, page[-1].key) if len(records) > self.limit else None
        return Page(page, following, replies[0].now, wait=rows[0][-1])


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
