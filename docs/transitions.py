"""Every change that a record can make, as data: the docs are drawn from it, and the interleaving explorer checks every write against it."""

from typing import Final, NamedTuple

from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED


class Transition(NamedTuple):
    """One change of a record, the name of the change, and its condition in the store."""

    source: str
    step: str
    target: str
    condition: str


ABSENT: Final = "absent"
_NONE: Final = "there is no record"
_OWNER: Final = "the writer owns the claim"
_SAME: Final = "the record has not changed since it was read"
_OVER: Final = "the time `expires_at` is over"
_LAPSED: Final = f"the lease has lapsed, and {_SAME}"
_EITHER: Final = f"{_OWNER}; or {_LAPSED}"
_EXPIRED: Final = f"the record has expired, and {_SAME}"
TRANSITIONS: Final[tuple[Transition, ...]] = (
    Transition(ABSENT, "claim", IN_PROGRESS, _NONE),
    Transition(IN_PROGRESS, "heartbeat", IN_PROGRESS, _OWNER),
    Transition(IN_PROGRESS, "step", IN_PROGRESS, _OWNER),
    Transition(IN_PROGRESS, "complete", COMPLETED, _OWNER),
    Transition(IN_PROGRESS, "release", RELEASED, _OWNER),
    Transition(IN_PROGRESS, "park", PARKED, _EITHER),
    Transition(IN_PROGRESS, "take over", IN_PROGRESS, _LAPSED),
    Transition(RELEASED, "claim", IN_PROGRESS, _SAME),
    Transition(RELEASED, "park", PARKED, _SAME),
    Transition(COMPLETED, "claim", IN_PROGRESS, _EXPIRED),
    Transition(PARKED, "unpark", RELEASED, _SAME),
    # messages that leave after the completion: a send lease, progress, or all struck out; or without a claim
    Transition(COMPLETED, "send", COMPLETED, _SAME),
    Transition(ABSENT, "send", COMPLETED, _NONE),
    # `onceward retry --from`, for a person who has looked
    Transition(COMPLETED, "retry", RELEASED, _SAME),
    Transition(RELEASED, "retry", RELEASED, _SAME),
    Transition(PARKED, "retry", RELEASED, _SAME),
    Transition(IN_PROGRESS, "retry", RELEASED, _LAPSED),
    # `onceward settle`, for a person who knows that the effect was made
    Transition(RELEASED, "settle", COMPLETED, _SAME),
    Transition(PARKED, "settle", COMPLETED, _SAME),
    Transition(IN_PROGRESS, "settle", COMPLETED, _LAPSED),
    # a message that no dead-letter queue takes, in its key's record or in a separate one
    Transition(ABSENT, "keep", PARKED, _NONE),
    Transition(RELEASED, "keep", PARKED, _SAME),
    Transition(PARKED, "keep", PARKED, _SAME),
    # claim, effect and completion in one write
    Transition(ABSENT, "transact", COMPLETED, _NONE),
    Transition(IN_PROGRESS, "transact", COMPLETED, _EITHER),
    Transition(RELEASED, "transact", COMPLETED, _SAME),
    Transition(COMPLETED, "transact", COMPLETED, _EXPIRED),
    Transition(COMPLETED, "expire", ABSENT, _OVER),
    Transition(RELEASED, "expire", ABSENT, _OVER),
    Transition(IN_PROGRESS, "expire", ABSENT, "the times `expires_at` and `lease_until` are over"),
)
