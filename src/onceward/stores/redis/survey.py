"""Counting the records of a Redis ledger by its indexes, without reading it."""

from typing import TYPE_CHECKING, Final

from onceward.core.drivers import Steps
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED
from onceward.stores.redis.finding import UNFINISHED
from onceward.stores.redis.requests import RoundTrip, ScriptCall
from onceward.stores.redis.scripts import SURVEY
from onceward.stores.survey import Survey

if TYPE_CHECKING:
    from onceward.stores.redis.store import RedisStore


# What the script counts. ENDED: past their expires_at, of which Redis has deleted the completed ones. DUE: all with messages.
_COUNTED: Final = ("TOTAL", "ENDED", IN_PROGRESS, RELEASED, PARKED, "LAPSED", "UNSENT", "DUE")


def survey(store: "RedisStore") -> Steps[Survey]:
    """Return what the ledger holds (:data:`onceward.stores.capabilities.SURVEY`).

    A completed record that has expired is gone, and its entry in the indexes stays until the next purge.
    """
    answers = yield RoundTrip("count", [ScriptCall(SURVEY, shard.keys_of(b"")) for shard in store.names.shards])
    counts = dict(zip(_COUNTED, map(sum, zip(*(answer[1:] for answer in answers), strict=True)), strict=True))
    total, ended, due = (counts.pop(name) for name in ("TOTAL", "ENDED", "DUE"))
    counts["REFUSED"] = due - counts["UNSENT"]
    if ended == 0:
        counts |= {"EXPIRED": 0, COMPLETED: total - sum(counts[status] for status in UNFINISHED)}
    now = max(float(answer[0]) for answer in answers)
    return Survey(UNFINISHED, True, counts, total, ended == 0, None, now)
