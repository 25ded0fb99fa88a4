"""Finding the records of a PostgreSQL ledger whose messages are due, by a partial index."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from onceward.core.drivers import Steps
from onceward.core.protocol import SOME_DAY
from onceward.errors import StoreError
from onceward.stores.capabilities import point_of, token_of
from onceward.stores.contract import DuePage
from onceward.stores.postgres.finding import is_indexed
from onceward.stores.postgres.queries import Query, reply_of
from onceward.stores.postgres.schema import Names
from onceward.stores.postgres.statements import FIRST
from onceward.stores.sql.columns import COLUMNS, FIELDS
from onceward.stores.sql.queries import Row

if TYPE_CHECKING:
    from onceward.stores.postgres.store import PostgresStore

_NOW: Final = "(SELECT now FROM c)"
_UNTIL: Final = f"({_NOW} + make_interval(secs => $5::float8))"


class DueQuery(Query):
    """One page of records whose messages are due, and one more row to know whether it is the last."""

    __slots__ = ("limit",)

    def __init__(self, names: Names, after: str | None, limit: int, ahead: float) -> None:
        fields = ", ".join(f"t.{name}" for name in FIELDS)
        text = (
            f"{FIRST} SELECT t.key IS NULL AND NULL, c.now, {fields}, (SELECT date_part('epoch', min(due_at) - {_NOW}) "
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
