"""The owner's clock: seconds that only grow, counted through a suspend of the machine where the system can tell."""

import time
from collections.abc import Callable

Clock = Callable[[], float]


def _boottime() -> float:
    # CLOCK_MONOTONIC stands still while a laptop sleeps; a lease in a store elsewhere does not.
    return time.clock_gettime(time.CLOCK_BOOTTIME)


boottime: Clock = _boottime if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
