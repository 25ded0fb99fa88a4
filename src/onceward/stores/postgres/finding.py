"""Finding records of a PostgreSQL ledger by status and age (:data:`onceward.stores.capabilities.FIND`)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from onceward.core.drivers import Steps
from onceward.core.views import Criteria
from onceward.stores.contract import Page
from onceward.stores.postgres.queries import Query, RawQuery, reply_of
from onceward.stores.postgres.schema import UNFINISHED, Names
from onceward.stores.postgres.statements import FIRST
from onceward.stores.sql.columns import FIELDS
from onceward.stores.sql.finding import FOUND, Dialect, end_of, having, looking, next_page
from onceward.stores.sql.queries import Row

if TYPE_CHECKING:
    from onceward.stores.postgres.store import PostgresStore

DIALECT: Final = Dialect("(SELECT now FROM c)", "(SELECT now FROM c) - interval '{} seconds'")
_KEYS: Final = "key > $2 AND key >= $3 AND ($4::text IS NULL OR key < $4)"
# An index that is still being built, or whose building was stopped, finds nothing.
# Of this very table: on a search path, another schema can have a ledger with an index of that name.
_INDEXES: Final = (
    "FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid "
    "WHERE i.indrelid = to_regclass($1::text) AND c.relname = $2::text"
)
_USABLE: Final = f"SELECT coalesce((SELECT bool_or(i.indisvalid) {_INDEXES}), false)"
_NAMED: Final = f"SELECT (SELECT i.indexrelid::regclass::text {_INDEXES})"


class FindQuery(Query):
    """One page of records by status and age."""

    __slots__ = ("limit",)

    def __init__(
        self, names: Names, criteria: Criteria, prefix: str, after: str | None, limit: int, covered: str | None
    ) -> None:
        looks = looking(criteria, names.table, _KEYS, "$5::bigint", DIALECT, covered)
        fields = ", ".join(f"t.{name}" for name in FIELDS)
        text = (
            f"{FIRST}, {looks} SELECT t.key IS NULL AND NULL, c.now, {fields}, l.rows, l.last "
            f"FROM c CROSS JOIN {FOUND.format(table=names.table)}"
        )
        super().__init__("find", text, (after or "", prefix, end_of(prefix), limit + 1))
        self.limit = limit

    def reply(self, rows: Sequence[Row]) -> Page:
        """Return the page."""
        looked, last = rows[0][-2:]
        replies = [reply_of(row[:-2]) for row in rows]
        records = [reply.record for reply in replies if reply.record is not None]
        point = next_page([record.key for record in records], self.limit, looked, last)
        return Page(records[: self.limit], point, replies[0].now)


def find(store: "PostgresStore", criteria: Criteria, prefix: str, after: str | None, limit: int) -> Steps[Page]:
    """Read one page of the records that ``criteria`` mean, in the order of their keys."""
    names, covered = store.names, None
    if criteria.are_within(UNFINISHED) and (yield from is_indexed(names, names.open)):
        covered = having(UNFINISHED)
    elif criteria.are_about_messages and (yield from is_indexed(names, names.due)):
        covered = "due_at IS NOT NULL"
    page: Page = yield FindQuery(names, criteria, prefix, after, limit, covered)
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
