"""A service's own clock, as its answers show it: the ``Date`` header, and the owner's clock in between.

An answer whose header says 12:00:05 was made between 12:00:05 and 12:00:06 by the server's clock, and between the sending
of its request and its arrival by ours. So each answer gives the two ends of an interval that holds the server's time, and
several give a shorter one. A lease is stamped with the later end and judged by the earlier one: whoever waits for
it waits a second too long rather than a moment too short.
"""

import threading
import time

from onceward.core.clock import Clock, boottime
from onceward.wire.calls import ServiceAnswer

JUMP = 2.0  # seconds by which two clocks of one machine do not part while it runs
TRUSTED = 60.0  # seconds that an interval is made shorter by further answers, before two clocks have drifted apart


class ServerClock:
    """The server's time (seconds since the epoch) as an interval.

    Args:
        clock: the owner's clock, which the ``sent`` and ``received`` of the answers are read on.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._watched = clock is boottime
        self._ahead = 0.0  # this machine's time of day minus the owner's clock, when an answer was last seen
        self._lock = threading.RLock()  # a signal handler may call where it interrupts this very thread
        self._offsets: tuple[float, float] | None = None  # earliest and latest of server's time minus ours
        self._fresh_until = 0.0

    @property
    def known(self) -> bool:
        """Whether an answer has been seen, since which both clocks of this machine have gone on alike.

        After a machine was frozen, or restored from a snapshot, they have not. That says nothing about the time, but that
        the server must be asked again.
        """
        if self._offsets is None:
            return False
        return not self._watched or abs(time.time() - self._clock() - self._ahead) < JUMP

    def learn(self, answer: ServiceAnswer) -> None:
        """Take in what an answer says of the server's time."""
        if answer.date is None:
            return
        if not self.known:
            self._fresh_until = 0.0
        if self._watched:
            self._ahead = time.time() - self._clock()
        low, high = answer.date - answer.received, answer.date + 1 - answer.sent
        held = self._offsets
        if held is not None and low <= held[0] and held[1] <= high and answer.received < self._fresh_until:
            return  # it tells nothing new, as most do
        with self._lock:
            if self._offsets is not None and answer.received < self._fresh_until:
                held_low, held_high = self._offsets
                if low < held_high and held_low < high:
                    self._offsets = max(low, held_low), min(high, held_high)
                    return
            # The first, or an old interval, or clocks that do not agree any more: what was said last holds.
            self._offsets = low, high
            self._fresh_until = answer.received + TRUSTED

    def earliest(self) -> float:
        """Return what the server's clock shows now, or a little less: to judge a lease by."""
        return self._clock() + self._offsets[0] if self._offsets else float("-inf")

    def latest(self) -> float:
        """Return what the server's clock shows now, or a little more: to stamp a lease with. Raises before any answer."""
        assert self._offsets is not None, "nothing is written before the server's time is known"
        return self._clock() + self._offsets[1]

    def signing(self) -> float:
        """Return the time to sign a request with: the server's, and until it is known this machine's."""
        return self._clock() + self._offsets[0] if self._offsets else time.time()
