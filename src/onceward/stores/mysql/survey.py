"""Counting the records of a MySQL ledger without reading it (:data:`onceward.stores.capabilities.SURVEY`)."""

from typing import TYPE_CHECKING

from onceward.core.drivers import Steps
from onceward.core.protocol import STATES
from onceward.core.record import COMPLETED
from onceward.stores.mysql.finding import has_index, index_of_ledger
from onceward.stores.mysql.queries import DIALECT, RowsQuery
from onceward.stores.mysql.schema import UNFINISHED, MysqlNames
from onceward.stores.mysql.statements import NOW
from onceward.stores.sql.finding import printed
from onceward.stores.survey import READ, Survey

if TYPE_CHECKING:
    from onceward.stores.mysql.store import MysqlStore


def survey(store: "MysqlStore") -> Steps[Survey]:
    """Count what is not completed by its index. Up to :data:`READ` records, count all; then there are estimates."""
    names = store.names
    ((now,),) = yield RowsQuery(f"SELECT {NOW}")
    total, exact = (yield from _estimate(names)), False
    if total <= READ:  # the statistics may be old
        ((total,),) = yield RowsQuery(f"SELECT count(*) FROM (SELECT 1 FROM {names.table} LIMIT {READ + 1}) s")
        exact = total <= READ
    counts: dict[str, int] = {}
    indexed = yield from has_index(names, "open")
    if indexed:
        counts = yield from _unfinished(names)
        if exact:  # two statements, two moments
            counts[COMPLETED] = max(0, total - sum(counts[status] for status in UNFINISHED))
    if (yield from has_index(names, "due")):
        counts["UNSENT"], counts["REFUSED"] = yield from _messages(names)
    return Survey(UNFINISHED if indexed else frozenset(), True, counts, total, exact, None, now / 1e6)


def _estimate(names: MysqlNames) -> Steps[int]:
    """Return how many records there are by the server's own statistics."""
    place = "DATABASE()" if names.database is None else f"'{names.database}'"
    rows = yield RowsQuery(
        f"SELECT table_rows FROM information_schema.tables WHERE table_schema = {place} AND table_name = '{names.plain}'"
    )
    return int(rows[0][0] or 0) if rows else 0


def _unfinished(names: MysqlNames) -> Steps[dict[str, int]]:
    """Count by status, the lapsed, and the expired. Each is read in an index."""
    lapsed, expired = (printed(STATES[state], DIALECT) for state in ("LAPSED", "EXPIRED"))
    open_ones, expiry = (index_of_ledger(names, index) for index in ("open", "expiry"))
    rows = yield RowsQuery(
        f"SELECT status, count(*), coalesce(sum({lapsed}), 0) FROM {names.table} FORCE INDEX ({open_ones}) "
        f"WHERE unfinished = 1 GROUP BY status",
        action="count",
    )
    ((gone,),) = yield RowsQuery(
        f"SELECT count(*) FROM {names.table} FORCE INDEX ({expiry}) WHERE expires_at IS NOT NULL AND {expired}",
        action="count",
    )
    counts = dict.fromkeys(UNFINISHED, 0) | {row[0]: int(row[1]) for row in rows}
    return counts | {"LAPSED": sum(int(row[2]) for row in rows), "EXPIRED": int(gone)}


def _messages(names: MysqlNames) -> Steps[tuple[int, int]]:
    """Count the records with messages to send, and those of which only refused ones are left."""
    terms = (f"coalesce(sum({printed(STATES[state], DIALECT)}), 0)" for state in ("UNSENT", "REFUSED"))
    ((unsent, refused),) = yield RowsQuery(
        f"SELECT {', '.join(terms)} FROM {names.table} FORCE INDEX ({index_of_ledger(names, 'due')}) WHERE due_at IS NOT NULL",
        action="count",
    )
    return int(unsent), int(refused)
