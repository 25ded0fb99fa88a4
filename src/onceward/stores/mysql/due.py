"""Finding the records of a MySQL ledger whose messages are due, by an index."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onceward.core.drivers import Steps
from onceward.core.protocol import SOME_DAY
from onceward.errors import StoreError
from onceward.stores.capabilities import point_of, token_of
from onceward.stores.contract import DuePage
from onceward.stores.mysql.finding import has_index, index_of_ledger
from onceward.stores.mysql.queries import MysqlQuery, record_in, unpacked
from onceward.stores.mysql.statements import NOW, OF_T, STARTED, MysqlStatements, literal, microseconds, packed
from onceward.stores.sql.queries import Row

if TYPE_CHECKING:
    from onceward.stores.mysql.store import MysqlStore


class DuePageQuery(MysqlQuery):
    """One page of records whose messages are due within ``ahead`` seconds, and one more row to know whether it is the last."""

    __slots__ = ("_after", "_ahead", "limit")

    def __init__(self, after: str | None, limit: int, ahead: float) -> None:
        super().__init__("due")
        self._after, self.limit, self._ahead = after, limit, ahead

    def texts(self, statements: MysqlStatements) -> list[str]:
        """Return the statements."""
        due_at, key = point_of(self._after)
        since = microseconds(due_at)
        table = f"{statements.names.table} t FORCE INDEX ({index_of_ledger(statements.names, 'due')})"
        until = f"{STARTED} + {microseconds(self._ahead)}"
        soon = f"t.due_at > {until} AND t.due_at < {STARTED} + {microseconds(SOME_DAY)}"
        page = (
            f"SELECT t.* FROM {table} WHERE t.due_at >= {since} AND t.due_at <= {until} "
            f"AND (t.due_at > {since} OR t.`key` > {literal(key)}) ORDER BY t.due_at, t.`key` LIMIT {self.limit + 1}"
        )
        wait = f"SELECT min(t.due_at) - {STARTED} AS wait FROM {table} WHERE {soon}"
        ordered = "ON true ORDER BY t.due_at, t.`key`"
        return [f"SELECT {packed('x.wait', NOW, OF_T)} FROM ({wait}) x LEFT JOIN ({page}) t {ordered}"]

    def reply(self, rows: Sequence[Row]) -> DuePage:
        """Return the page."""
        found = unpacked(rows)
        wait, now = found[0][:2]
        records = [record_in(fields) for _, _, *fields in found if fields[0] is not None]
        page = records[: self.limit]
        following = token_of(page[-1].due_at or 0.0, page[-1].key) if len(records) > self.limit else None
        return DuePage(page, following, now / 1e6, None if wait is None else wait / 1e6)


def outbox(store: "MysqlStore") -> Steps[None]:
    """Check that the index is there (:data:`onceward.stores.capabilities.OUTBOX`)."""
    yield from store.load("?")  # the first use makes the ledger
    if not (yield from has_index(store.names, "due")):
        raise StoreError(
            f"ledger {store.url}: it has no index of messages. Let a user that may ALTER tables run "
            f"`onceward migrate --store {store.url}` once"
        )


def due(_: "MysqlStore", after: str | None, limit: int, ahead: float) -> Steps[DuePage]:
    """Read the records whose messages are due (:data:`onceward.stores.capabilities.DUE`)."""
    page: DuePage = yield DuePageQuery(after, limit, ahead)
    return page
