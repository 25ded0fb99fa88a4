"""What a PostgreSQL ledger holds, in bounded time (:data:`onceward.stores.capabilities.SURVEY`)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from onceward.core.drivers import Steps
from onceward.core.record import COMPLETED
from onceward.stores.contract import Counts
from onceward.stores.postgres.counting import TOTAL, CountQuery, messages
from onceward.stores.postgres.finding import is_indexed
from onceward.stores.postgres.queries import RawQuery
from onceward.stores.postgres.schema import UNFINISHED, Names
from onceward.stores.survey import READ, Survey

if TYPE_CHECKING:
    from onceward.stores.postgres.store import PostgresStore

# New keys of all transactions so far, by PostgreSQL's own statistics.
_ARRIVED: Final = (
    "SELECT extract(epoch FROM clock_timestamp())::float8, coalesce(sum(n_tup_ins), 0)::bigint FROM pg_stat_all_tables "
    "WHERE relid = to_regclass($1::text) OR relid IN (SELECT relid FROM pg_partition_tree(to_regclass($1::text)))"
)


def survey(store: "PostgresStore") -> Steps[Survey]:
    """Count what is not completed by its index. Up to :data:`READ` records, count all; then there are estimates."""
    names = store.names
    ((now, arrived),) = yield RawQuery(_ARRIVED, names.table)
    ((total,),) = yield RawQuery(TOTAL, names.table)
    exact = False
    if total <= READ:  # the statistics may be old
        ((total,),) = yield RawQuery(f"SELECT count(*) FROM (SELECT 1 FROM {names.table} LIMIT {READ + 1}) s")
        exact = total <= READ
    counts: dict[str, int] = {}
    indexed = yield from is_indexed(names, names.open)
    if indexed or exact:
        counts = yield from _counted(names)
        if exact:
            counts[COMPLETED] = max(
                0, total - sum(counts[status] for status in UNFINISHED)
            )  # two statements, two moments
    if (yield from is_indexed(names, names.due)):
        ((counts["UNSENT"], counts["REFUSED"]),) = yield RawQuery(messages(names))
    return Survey(UNFINISHED if indexed else frozenset(), True, counts, total, exact, arrived, now)


def _counted(names: Names) -> Steps[dict[str, int]]:
    found: Counts = yield CountQuery(names)
    states: Sequence[tuple[str, int]] = (("LAPSED", found.lapsed), ("EXPIRED", found.expired or 0))
    return dict.fromkeys(UNFINISHED, 0) | found.unfinished | dict(states)
