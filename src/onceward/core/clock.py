"""The owner's clock: seconds that only grow, counted through a suspend of the machine where the system can tell."""

import time
from collections.abc import Callable
from functools import partial

Clock = Callable[[], float]

# CLOCK_MONOTONIC stands still while a laptop sleeps; a lease in a store elsewhere does not.
boottime: Clock = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
