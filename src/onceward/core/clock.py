"""The owner's clock: seconds that only grow. Where the system can tell, they go on while the machine is suspended."""

import time
from collections.abc import Callable
from functools import partial

Clock = Callable[[], float]

# CLOCK_MONOTONIC stops while a laptop sleeps; a lease in a remote store does not.
boottime: Clock = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
