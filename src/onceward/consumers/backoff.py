"""When a message that cannot be acknowledged comes again."""

from typing import TYPE_CHECKING, Final, NamedTuple

from onceward.core.retries import jittered
from onceward.errors import Busy

if TYPE_CHECKING:
    from onceward.batch.outcomes import BatchOutcome

_LEAST: Final = 1.0  # seconds between two tries of a busy key


class Backoff(NamedTuple):
    """How long a failed message stays away, in seconds: twice as long after each receive."""

    first: float
    longest: float

    def seconds(self, receives: int) -> float:
        """Return the pause after ``receives`` receives. Jitter keeps messages that failed together apart."""
        wanted = self.first * 2.0 ** min(receives - 1, 60)
        return jittered(min(self.longest, wanted)).seconds


def time_away(outcome: "BatchOutcome", receives: int, backoff: Backoff, *, goes: bool) -> float:
    """Return for how many seconds a message that cannot be acknowledged stays away.

    ``receives`` is how often it was received; ``goes`` whether the broker itself removes it after some more.
    """
    if outcome.status == "deferred":
        return 0.0  # an ordered group waits anyway for its failed message, which is still away
    if outcome.status == "busy":
        return max(_LEAST, outcome.error.retry_after) if isinstance(outcome.error, Busy) else _LEAST
    if outcome.status == "failed":
        return backoff.seconds(receives)
    # Parked, mismatch, malformed: a retry does not help. If the broker removes it, let that be soon. Otherwise it comes rarely,
    # until the ledger keeps it or somebody fixes the cause.
    return backoff.first if goes else backoff.longest
