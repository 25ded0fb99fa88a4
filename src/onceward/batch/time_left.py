"""The time that is left for one call of a batch, and what fits into it."""

import math
from typing import Final

from onceward.batch.handler import BatchHandler
from onceward.core.belief import within
from onceward.core.policy import Policy

CLAIMED: Final = 100  # records claimed together: the size of one DynamoDB batch read
RESERVE: Final = 1.0  # seconds of the time left (at most a tenth of it) that are kept for recording
_WEIGHT: Final = 0.2  # of the newest duration in the moving average


class TimeLeft:
    """The time of one call: ``seconds`` until this process is stopped; None is no limit.

    Attributes:
        deadline: when that is, on the owner's clock.

    Raises:
        ValueError, TypeError: ``seconds`` is no number of seconds.
    """

    def __init__(self, batch: BatchHandler, seconds: float | None) -> None:
        seconds = _checked(seconds)
        self._batch = batch
        self._clock = batch.guard.clock
        self.deadline = None if seconds is None else self._clock() + seconds
        self._reserve = 0.0 if seconds is None else min(RESERVE, seconds / 10)
        self._any = False  # whether anything has begun

    def is_over(self) -> bool:
        """Return whether another handler would end too late."""
        if self.deadline is None:
            return False
        # Always try the first item: one slow record must not stop all later batches.
        time = self._reserve + (self._batch.typical if self._any else 0.0)
        return self._clock() + time >= self.deadline

    def chunk(self) -> int:
        """Return how many records to claim together."""
        typical = self._batch.typical
        if self.deadline is None or not typical:
            return CLAIMED
        remaining = self.deadline - self._clock() - self._reserve
        return max(1, int(min(CLAIMED, remaining / typical * self._batch.concurrency)))

    def policy(self) -> Policy:
        """Return the guard's policy, whose leases do not outlive this time."""
        guard = self._batch.guard
        return (
            guard.policy if self.deadline is None else within(guard.store, guard.policy, self.deadline - self._clock())
        )

    def limit(self, until: float) -> float:
        """Return ``until``, or an earlier time if the time left ends first, so that the answer can still be sent."""
        return until if self.deadline is None else min(until, self.deadline - self._reserve / 2)

    def begin(self) -> float:
        """Note that a handler begins, and return when."""
        self._any = True
        return self._clock()

    def ended(self, began: float) -> None:
        """Note that a handler that began at ``began`` has ended."""
        took, typical = self._clock() - began, self._batch.typical
        self._batch.typical = took if not typical else typical + _WEIGHT * (took - typical)


def _checked(seconds: object) -> float | None:
    if seconds is None or seconds == math.inf:
        return None
    wrong = f"time_left={seconds!r}: give a number of seconds, or None for no limit"
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(wrong)
    if math.isnan(seconds):
        raise ValueError(wrong)
    return float(seconds)
