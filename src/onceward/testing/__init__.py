"""The test kit for your own handlers and stores.

- ``crashes``: a handler of yours, killed, paused and cut off at every point; with fixtures for pytest (``pytest_plugin``).
- ``off``: a switch for unit tests, which run guarded functions as if they had no guard.
- ``clock``: a clock that tests move by hand.
- ``conformance``: every sentence of the store contract as a check, for any store.
"""

from typing import TYPE_CHECKING

from onceward.lazily import lazily

if TYPE_CHECKING:
    from onceward.testing.clock import ManualClock
    from onceward.testing.crash import Crash
    from onceward.testing.crashes import Crashes
    from onceward.testing.mishaps import Mishap
    from onceward.testing.off import off
    from onceward.testing.stage import Killed

__all__ = ["Crash", "Crashes", "Killed", "ManualClock", "Mishap", "off"]

# Loaded on first use: pytest loads this package with its plugin, also in projects that do not use it.
__getattr__, __dir__ = lazily(
    __name__,
    {
        ".clock": ("ManualClock",),
        ".crash": ("Crash",),
        ".crashes": ("Crashes",),
        ".mishaps": ("Mishap",),
        ".off": ("off",),
        ".stage": ("Killed",),
    },
)
