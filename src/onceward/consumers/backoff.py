"""When a message that cannot be acknowledged comes again."""

import random
from typing import TYPE_CHECKING, Final, NamedTuple

from onceward.errors import Busy

if TYPE_CHECKING:
    from onceward.batch.outcomes import BatchOutcome

_LEAST: Final = 1.0  # seconds between two looks at a busy key


class Backoff(NamedTuple):
    """How long a message that failed stays away: twice as long after each receive, in seconds."""

    first: float
    longest: float

    def seconds(self, receives: int) -> float:
        """Return the time after so many receives, with jitter, so that what failed together does not come together again."""
        wanted = self.first * 2.0 ** min(receives - 1, 60)
        return min(self.longest, wanted) * (0.5 + random.random() / 2)


def time_away(outcome: "BatchOutcome", receives: int, backoff: Backoff, *, dead_letters: bool) -> float:
    """Return for how many seconds a message that cannot be acknowledged stays away.

    Args:
        outcome: what became of it.
        receives: how often it has been received.
        backoff: for what failed.
        dead_letters: whether the broker takes away what has been received too often.
    """
    if outcome.status == "deferred":
        return 0.0  # where order counts, its group waits for the one that failed, which is still away
    if outcome.status == "busy":
        return max(_LEAST, outcome.error.retry_after) if isinstance(outcome.error, Busy) else _LEAST
    if outcome.status == "failed":
        return backoff.seconds(receives)
    # Parked, mismatch, malformed: trying again does not help. With dead letters it goes there soon. Without them it comes
    # rarely, until it is kept in the ledger or somebody has fixed what is wrong.
    return backoff.first if dead_letters else backoff.longest
