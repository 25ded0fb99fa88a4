"""The test kit: for your own stores, for handlers under faults, and for the protocol itself.

- ``clock``: a clock that tests move by hand.
- ``faults``: a store that fails, stalls or repeats itself as planned.
- ``conformance``: every sentence of the store contract as a check, for any store.
- ``explorer``: every interleaving of a few workers on one key, each state checked.
"""

from onceward.testing.clock import ManualClock
from onceward.testing.faults import Faults

__all__ = ["Faults", "ManualClock"]
