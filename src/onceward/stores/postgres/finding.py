"""Finding records of a PostgreSQL ledger by status and age (:data:`onceward.stores.capabilities.FIND`)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from onceward.core.drivers import Steps
from onceward.core.views import Criteria
from onceward.stores.contract import Page
from onceward.stores.postgres.queries import Query, RawQuery, Row, end_of, reply_of
from onceward.stores.postgres.schema import UNFINISHED, Names
from onceward.stores.postgres.statements import FIRST
from onceward.stores.sql.columns import FIELDS
from onceward.stores.sql.finding import FOUND, Dialect, having, looking, next_page

if TYPE_CHECKING:
    from onceward.stores.postgres.store import PostgresStore

DIALECT: Final = Dialect("(SELECT now FROM c)", "(SELECT now FROM c) - interval '{} seconds'")
_KEYS: Final = "key > $2 AND key >= $3 AND ($4::text IS NULL OR key < $4)"
# An index that is still being built, or whose building was stopped, finds nothing.
_USABLE: Final = "SELECT coalesce((SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1::text)), false)"


class FindQuery(Query):
    """One page of records by status and age."""

    __slots__ = ("limit",)

    def __init__(
        self, names: Names, criteria: Criteria, prefix: str, after: str | None, limit: int, *, quick: bool
    ) -> None:
        covered = having(UNFINISHED) if quick else None
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
    quick = criteria.are_within(UNFINISHED) and (yield from is_indexed(store.names))
    page: Page = yield FindQuery(store.names, criteria, prefix, after, limit, quick=quick)
    return page


def is_indexed(names: Names) -> Steps[bool]:
    """Return whether the index by status is there, and complete."""
    ((usable,),) = yield RawQuery(_USABLE, names.open)
    return usable is True
