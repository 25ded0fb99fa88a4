"""Counting the records of a Redis ledger by its indexes, without reading it."""

from typing import TYPE_CHECKING, NamedTuple

from onceward.core.drivers import Steps
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED
from onceward.stores.redis.finding import UNFINISHED
from onceward.stores.redis.requests import RoundTrip, ScriptCall
from onceward.stores.redis.scripts import SURVEY
from onceward.stores.survey import Survey

if TYPE_CHECKING:
    from onceward.stores.redis.store import RedisStore


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


def survey(store: "RedisStore") -> Steps[Survey]:
    """Return what the ledger holds (:data:`onceward.stores.capabilities.SURVEY`).

    A completed record that has expired is gone, and its entry in the indexes stays until the next purge.
    """
    answers = yield RoundTrip("count", [ScriptCall(SURVEY, shard.keys_of(b"")) for shard in store.names.shards])
    totals = _Totals(*map(sum, zip(*(answer[1:] for answer in answers), strict=True)))
    counts = {**totals.unfinished, "LAPSED": totals.lapsed, "UNSENT": totals.unsent}
    counts["REFUSED"] = totals.with_messages - totals.unsent
    exact = totals.ended == 0
    if exact:
        counts["EXPIRED"] = 0
        counts[COMPLETED] = totals.total - sum(totals.unfinished.values())
    now = max(float(answer[0]) for answer in answers)
    return Survey(UNFINISHED, True, counts, totals.total, exact, None, now)
