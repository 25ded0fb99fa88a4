"""onceward: handlers of at-least-once messages, events, tasks and requests take effect exactly once.

from onceward import Once

once = Once("sqlite:///orders.db")

@once(key="order.id", lease=60, max_attempts=5)
def charge(order: dict) -> dict: ...
"""

import sys
from typing import TYPE_CHECKING

from onceward.core.policy import Policy
from onceward.errors import (
    Busy,
    Completed,
    EffectRefused,
    ForkedClaim,
    InputNotKept,
    KeyMissing,
    LeaseLost,
    Mismatch,
    OncewardError,
    Parked,
    Reentrant,
    ResultNotRecorded,
    ResultUnavailable,
    ResultWarning,
    StepMade,
    StepNotRecorded,
    StoreError,
    UnknownNeed,
    UnknownStatus,
)
from onceward.lazily import lazily
from onceward.once import Once

if TYPE_CHECKING:
    from onceward.claim.claim import Claim
    from onceward.claim.completer import Sweep
    from onceward.claim.held import current
    from onceward.claim.replays import CallOutcome
    from onceward.claim.stepping.attempt import NOT_MADE, Made
    from onceward.core.attempts import Attempt
    from onceward.core.record import Record
    from onceward.stores.contract import NotFound
    from onceward.stores.ledger import Ledger

__version__ = "0.2.0"

__all__ = [
    "NOT_MADE",
    "Attempt",
    "Busy",
    "CallOutcome",
    "Claim",
    "Completed",
    "EffectRefused",
    "ForkedClaim",
    "InputNotKept",
    "KeyMissing",
    "LeaseLost",
    "Ledger",
    "Made",
    "Mismatch",
    "NotFound",
    "Once",
    "OncewardError",
    "Parked",
    "Policy",
    "Record",
    "Reentrant",
    "ResultNotRecorded",
    "ResultUnavailable",
    "ResultWarning",
    "StepMade",
    "StepNotRecorded",
    "StoreError",
    "Sweep",
    "UnknownNeed",
    "UnknownStatus",
    "current",
]


if sys.implementation.name != "cpython":
    from importlib.util import find_spec

    if find_spec("msgspec") is None:
        raise ImportError(
            f"onceward needs CPython: msgspec, which encodes its results, is not there for {sys.implementation.name}"
        )

# Loaded on first use, to keep `import onceward` short.
__getattr__, __dir__ = lazily(
    __name__,
    {
        ".claim.claim": ("Claim",),
        ".claim.completer": ("Sweep",),
        ".claim.replays": ("CallOutcome",),
        ".claim.held": ("current",),
        ".claim.stepping.attempt": ("NOT_MADE", "Made"),
        ".core.attempts": ("Attempt",),
        ".core.record": ("Record",),
        ".stores.contract": ("NotFound",),
        ".stores.ledger": ("Ledger",),
    },
)
