"""Counts the ledger for all visitors at once: however many look, it is asked at most once in two seconds."""

import threading
from collections import deque
from typing import Final, NamedTuple

from onceward.core.clock import Clock, boottime
from onceward.errors import StoreError
from onceward.stores.ledger import Ledger
from onceward.stores.survey import Survey

EVERY: Final = 2.0  # seconds
_WINDOW: Final = 300.0  # seconds over which rates and changes are told


class Counted(NamedTuple):
    """The counts at a moment of the dashboard's own clock (seconds)."""

    at: float
    survey: Survey


class Sampler:
    """The latest counts of a ledger, and those before them.

    Args:
        ledger: whose records to count.
        clock: seconds that only grow.
    """

    def __init__(self, ledger: Ledger, clock: Clock = boottime) -> None:
        self._ledger = ledger
        self._clock = clock
        self._lock = threading.Lock()
        self._samples: deque[Counted] = deque()
        self._failed: tuple[float, StoreError] | None = None

    def latest(self) -> Survey:
        """Return counts that are at most :data:`EVERY` old. Raises StoreError, which is kept as long."""
        with self._lock:
            now = self._clock()
            if self._samples and now - self._samples[-1].at < EVERY:
                return self._samples[-1].survey
            if self._failed is not None and now - self._failed[0] < EVERY:  # or visitors wait for it one after another
                raise StoreError(str(self._failed[1]), transient=self._failed[1].transient)
            try:
                sample = Counted(now, self._ledger.survey())
            except StoreError as error:
                self._failed = self._clock(), error
                raise
            self._failed = None
            self._samples.append(sample)
            while now - self._samples[0].at > _WINDOW:
                self._samples.popleft()
            return sample.survey

    def rate(self) -> float | None:
        """Return how many new keys came in a second, over the last minutes; None if that is not known yet."""
        with self._lock:
            known = [(at, survey.arrived) for at, survey in self._samples if survey.arrived is not None]
        if len(known) < 2:
            return None
        (began, first), (ended, last) = known[0], known[-1]
        return max(0.0, (last - first) / (ended - began))
