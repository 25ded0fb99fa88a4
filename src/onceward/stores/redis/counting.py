"""Counting the records of a Redis ledger by its indexes, without reading it."""

from typing import TYPE_CHECKING, Final, NamedTuple

from onceward.core.drivers import Steps
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED
from onceward.stores.contract import Counts
from onceward.stores.redis.finding import UNFINISHED
from onceward.stores.redis.requests import RoundTrip, ScriptCall
from onceward.stores.redis.scripts import SURVEY
from onceward.stores.survey import Survey

if TYPE_CHECKING:
    from onceward.stores.redis.store import RedisStore

_LARGE: Final = 100_000  # records; fewer are counted exactly as fast


class _Totals(NamedTuple):
    """The sums over all shards. ``ended`` are those past their expires_at, of which Redis has deleted the completed ones."""

    total: int
    ended: int
    in_progress: int
    released: int
    parked: int
    lapsed: int
    unsent: int
    with_messages: int

    @property
    def unfinished(self) -> dict[str, int]:
        """Those that are not completed, by status."""
        return {IN_PROGRESS: self.in_progress, RELEASED: self.released, PARKED: self.parked}


def _totals(store: "RedisStore") -> Steps[tuple[_Totals, float]]:
    answers = yield RoundTrip("count", [ScriptCall(SURVEY, shard.keys_of(b"")) for shard in store.names.shards])
    sums = map(sum, zip(*(answer[1:] for answer in answers), strict=True))
    return _Totals(*sums), max(float(answer[0]) for answer in answers)


def count(store: "RedisStore") -> Steps[Counts | None]:
    """Count the records of a large ledger (:data:`onceward.stores.capabilities.COUNT`)."""
    totals, _ = yield from _totals(store)
    if totals.total < _LARGE:
        return None
    refused = totals.with_messages - totals.unsent
    return Counts(totals.unfinished, totals.lapsed, None, totals.total, totals.unsent, refused)


def survey(store: "RedisStore") -> Steps[Survey]:
    """Tell what the ledger holds (:data:`onceward.stores.capabilities.SURVEY`).

    A completed record that has expired is gone, and its entry in the indexes stays until the next purge.
    """
    totals, now = yield from _totals(store)
    counts = {**totals.unfinished, "LAPSED": totals.lapsed, "UNSENT": totals.unsent}
    counts["REFUSED"] = totals.with_messages - totals.unsent
    exact = totals.ended == 0
    if exact:
        counts["EXPIRED"] = 0
        counts[COMPLETED] = totals.total - sum(totals.unfinished.values())
    return Survey(UNFINISHED, True, counts, totals.total, exact, None, now)
