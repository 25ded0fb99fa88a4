"""Counting the records of a large PostgreSQL ledger without reading it (:data:`onceward.stores.capabilities.COUNT`)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from onceward.core.drivers import Steps
from onceward.core.protocol import STATES
from onceward.stores.contract import Counts
from onceward.stores.postgres.finding import DIALECT, is_indexed
from onceward.stores.postgres.queries import Query, RawQuery
from onceward.stores.postgres.schema import UNFINISHED, Names
from onceward.stores.postgres.statements import FIRST
from onceward.stores.sql.finding import Dialect, having, printed
from onceward.stores.sql.queries import Row

if TYPE_CHECKING:
    from onceward.stores.postgres.store import PostgresStore

_LARGE: Final = 100_000  # records; fewer are counted exactly as fast
# Of the last vacuum or analyze. A partitioned table has its rows in other ones.
TOTAL: Final = (
    "SELECT coalesce(sum(greatest(reltuples, 0)), 0)::bigint FROM pg_class WHERE relkind = 'r' AND (oid = to_regclass($1::text) "
    "OR oid IN (SELECT relid FROM pg_partition_tree(to_regclass($1::text))))"
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

    def reply(self, rows: Sequence[Row]) -> Counts:
        """Return the counts, without the total."""
        of_status = [row for row in rows if row[0] is not None]
        (expired,) = (row[1] for row in rows if row[0] is None)
        return Counts({row[0]: row[1] for row in of_status}, sum(row[2] for row in of_status), expired, 0)


def count(store: "PostgresStore") -> Steps[Counts | None]:
    """Count the records of a large ledger that has its index."""
    ((total,),) = yield RawQuery(TOTAL, store.names.table)
    if total < _LARGE or not (yield from is_indexed(store.names, store.names.open)):
        return None
    counts: Counts = yield CountQuery(store.names)
    unsent = refused = 0
    if (yield from is_indexed(store.names, store.names.due)):
        ((unsent, refused),) = yield RawQuery(messages(store.names))
    total = max(total, sum(counts.unfinished.values()))
    return counts._replace(total=total, unsent=unsent, refused=refused)


def messages(names: Names) -> str:
    """Return the statement that counts the records with messages to send, and those of which only refused ones are left."""
    dialect = Dialect("clock_timestamp()", "clock_timestamp() - interval '{} seconds'")
    terms = (f"count(*) FILTER (WHERE {printed(STATES[state], dialect)})" for state in ("UNSENT", "REFUSED"))
    return f"SELECT {', '.join(terms)} FROM {names.table} WHERE due_at IS NOT NULL"
