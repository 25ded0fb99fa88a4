"""What a PostgreSQL ledger holds, in bounded time (:data:`onceward.stores.capabilities.SURVEY`)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from onceward.core.drivers import Steps
from onceward.core.protocol import STATES
from onceward.core.record import COMPLETED
from onceward.stores.postgres.finding import is_indexed
from onceward.stores.postgres.queries import DIALECT, Query, RawQuery
from onceward.stores.postgres.schema import UNFINISHED, Names
from onceward.stores.postgres.statements import FIRST
from onceward.stores.sql.finding import Dialect, having, printed
from onceward.stores.sql.queries import Row
from onceward.stores.survey import READ, Survey

if TYPE_CHECKING:
    from onceward.stores.postgres.store import PostgresStore

# Of the last vacuum or analyze. A partitioned table has its rows in other ones.
_TOTAL: Final = (
    "SELECT coalesce(sum(greatest(reltuples, 0)), 0)::bigint FROM pg_class WHERE relkind = 'r' AND (oid = to_regclass($1::text) "
    "OR oid IN (SELECT relid FROM pg_partition_tree(to_regclass($1::text))))"
)
# New keys of all transactions so far, by PostgreSQL's own statistics.
_ARRIVED: Final = (
    "SELECT extract(epoch FROM clock_timestamp())::float8, coalesce(sum(n_tup_ins), 0)::bigint FROM pg_stat_all_tables "
    "WHERE relid = to_regclass($1::text) OR relid IN (SELECT relid FROM pg_partition_tree(to_regclass($1::text)))"
)


class CountQuery(Query):
    """How many records are not completed, by status, and how many are expired."""

    __slots__ = ()

    def __init__(self, names: Names) -> None:
        lapsed, expired = (printed(STATES[state], DIALECT) for state in ("LAPSED", "EXPIRED"))
        super().__init__(
            "count",
            f"{FIRST} SELECT status, count(*), count(*) FILTER (WHERE {lapsed}) FROM {names.table} WHERE {having(UNFINISHED)} "
            f"GROUP BY status UNION ALL SELECT NULL, count(*), NULL FROM {names.table} WHERE {expired}",
            (),
        )

    def reply(self, rows: Sequence[Row]) -> dict[str, int]:
        """Return the counts by state."""
        of_status = [row for row in rows if row[0] is not None]
        (expired,) = (row[1] for row in rows if row[0] is None)
        counts = dict.fromkeys(UNFINISHED, 0) | {row[0]: row[1] for row in of_status}
        return counts | {"LAPSED": sum(row[2] for row in of_status), "EXPIRED": expired}


def survey(store: "PostgresStore") -> Steps[Survey]:
    """Count what is not completed by its index. Up to :data:`READ` records, count all; then there are estimates."""
    names = store.names
    ((now, arrived),) = yield RawQuery(_ARRIVED, names.table)
    ((total,),) = yield RawQuery(_TOTAL, names.table)
    exact = False
    if total <= READ:  # the statistics may be old
        ((total,),) = yield RawQuery(f"SELECT count(*) FROM (SELECT 1 FROM {names.table} LIMIT {READ + 1}) s")
        exact = total <= READ
    counts: dict[str, int] = {}
    indexed = yield from is_indexed(names, names.open)
    if indexed or exact:
        counts = yield CountQuery(names)
        if exact:
            counts[COMPLETED] = max(
                0, total - sum(counts[status] for status in UNFINISHED)
            )  # two statements, two moments
    if (yield from is_indexed(names, names.due)):
        ((counts["UNSENT"], counts["REFUSED"]),) = yield RawQuery(_messages(names))
    return Survey(UNFINISHED if indexed else frozenset(), True, counts, total, exact, arrived, now)


def _messages(names: Names) -> str:
    """Return the statement that counts the records with messages to send, and those of which only refused ones are left."""
    dialect = Dialect("clock_timestamp()", "clock_timestamp() - interval '{} seconds'")
    terms = (f"count(*) FILTER (WHERE {printed(STATES[state], dialect)})" for state in ("UNSENT", "REFUSED"))
    return f"SELECT {', '.join(terms)} FROM {names.table} WHERE due_at IS NOT NULL"
