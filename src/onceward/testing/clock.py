"""A clock that tests move by hand."""

import threading

EPOCH = 1_767_225_600.0  # 2026-01-01T00:00:00Z: fences are a store's time in microseconds, so 0 would not do


class ManualClock:
    """A clock that you move yourself; call it for the time in seconds. Threads can share it.

    Pass it to a store and to its ``Once``, and leases lapse without waiting::

        clock = ManualClock()
        once = Once(MemoryStore(clock), clock=clock)
        clock.advance(61)

    The heartbeat thread does not renew claims on such a clock; call ``claim.extend()``.

    Args:
        start: the first time, in seconds since the epoch.
    """

    def __init__(self, start: float = EPOCH) -> None:
        self._now = start
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass. A negative number sets the clock back."""
        with self._lock:
            self._now += seconds
