"""A clock that a test moves by hand."""

import threading

EPOCH = 1_767_225_600.0  # 2026-01-01T00:00:00Z: fences are a store's time in microseconds, so 0 would not do


class ManualClock:
    """Seconds that pass only when told to; call it for the time. Safe to share between threads.

    Hand one to a store and to the ``Once`` on it, and leases lapse without waiting::

        clock = ManualClock()
        once = Once(MemoryStore(clock), clock=clock)
        clock.advance(61)

    Claims on such a clock are not renewed by the heartbeat thread; ``claim.extend()`` does it.

    Args:
        start: what it shows at first, in seconds since the epoch.
    """

    def __init__(self, start: float = EPOCH) -> None:
        self._now = start
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass; a negative number is a clock that is set back."""
        with self._lock:
            self._now += seconds
