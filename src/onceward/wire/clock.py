"""Estimates a service's clock from the ``Date`` headers of its answers.

If the header says 12:00:05, the server made the answer between 12:00:05 and 12:00:06 on its clock. On ours, it did so
between sending the request and receiving the answer. So each answer gives an interval that holds the server's time, and
several answers narrow it. A lease is stamped with the later end and judged by the earlier end. A waiting worker may
therefore wait a second too long, but never too short.
"""

import threading
import time

from onceward.core.clock import Clock, boottime
from onceward.wire.calls import ServiceAnswer

JUMP = 2.0  # seconds; two clocks of one machine differ by more only after a freeze or a snapshot
TRUSTED = 60.0  # seconds in which answers narrow an interval; later the two clocks may have drifted apart


class ServerClock:
    """The server's time (seconds since the epoch) as an interval. Its ``clock`` is the one of the answers' ``sent``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._watched = clock is boottime
        self._ahead = 0.0  # wall clock minus the owner's clock, at the last answer
        self._lock = threading.RLock()  # reentrant: a signal handler may call in this thread
        self._offsets: tuple[float, float] | None = None  # server's time minus ours: earliest, latest
        self._fresh_until = 0.0

    @property
    def known(self) -> bool:
        """Whether an answer was seen, and both clocks of this machine have advanced equally since.

        After a freeze or a restored snapshot they have not, so the server must be asked again.
        """
        if self._offsets is None:
            return False
        return not self._watched or abs(time.time() - self._clock() - self._ahead) < JUMP

    def learn(self, answer: ServiceAnswer) -> None:
        """Update the interval from an answer's date."""
        if answer.date is None:
            return
        if not self.known:
            self._fresh_until = 0.0
        if self._watched:
            self._ahead = time.time() - self._clock()
        low, high = answer.date - answer.received, answer.date + 1 - answer.sent
        held = self._offsets
        if held is not None and low <= held[0] and held[1] <= high and answer.received < self._fresh_until:
            return  # nothing new; most answers end here
        with self._lock:
            if self._offsets is not None and answer.received < self._fresh_until:
                held_low, held_high = self._offsets
                if low < held_high and held_low < high:
                    self._offsets = max(low, held_low), min(high, held_high)
                    return
            # The first answer, an old interval, or clocks that no longer agree: the last answer wins.
            self._offsets = low, high
            self._fresh_until = answer.received + TRUSTED

    def earliest(self) -> float:
        """Return the earliest time the server's clock may show now. Judge leases by it."""
        return self._clock() + self._offsets[0] if self._offsets else float("-inf")

    def latest(self) -> float:
        """Return the latest time the server's clock may show now. Stamp leases with it. Raises before any answer."""
        assert self._offsets is not None, "nothing is written before the server's time is known"
        return self._clock() + self._offsets[1]

    def signing(self) -> float:
        """Return the time to sign a request with: the server's, or this machine's until the server's is known."""
        return self._clock() + self._offsets[0] if self._offsets else time.time()
