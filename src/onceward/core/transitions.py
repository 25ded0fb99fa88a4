"""Every change that a record can make, as data."""

from typing import Final, NamedTuple

from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED


class Transition(NamedTuple):
    """One change of a record, the step that makes it, and its condition in the store."""

    source: str
    step: str
    target: str
    condition: str


ABSENT: Final = "absent"
TRANSITIONS: Final[tuple[Transition, ...]] = (
    Transition(ABSENT, "claim", IN_PROGRESS, "absent"),
    Transition(IN_PROGRESS, "heartbeat", IN_PROGRESS, "owner"),
    Transition(IN_PROGRESS, "step", IN_PROGRESS, "owner"),
    Transition(IN_PROGRESS, "complete", COMPLETED, "owner"),
    Transition(IN_PROGRESS, "release", RELEASED, "owner"),
    Transition(IN_PROGRESS, "park", PARKED, "owner, or the lapsed record seen"),
    Transition(IN_PROGRESS, "take over", IN_PROGRESS, "the lapsed record seen"),
    Transition(RELEASED, "claim", IN_PROGRESS, "the record seen"),
    Transition(RELEASED, "park", PARKED, "the record seen"),
    Transition(COMPLETED, "claim", IN_PROGRESS, "the expired record seen"),
    Transition(PARKED, "unpark", RELEASED, "the record seen"),
    # messages that leave after the completion: a send lease, progress, or all struck out; or without a claim
    Transition(COMPLETED, "send", COMPLETED, "the record seen"),
    Transition(ABSENT, "send", COMPLETED, "absent"),
    # `onceward retry --from`, for a person who has looked
    Transition(COMPLETED, "retry", RELEASED, "the record seen"),
    Transition(RELEASED, "retry", RELEASED, "the record seen"),
    Transition(PARKED, "retry", RELEASED, "the record seen"),
    Transition(IN_PROGRESS, "retry", RELEASED, "the lapsed record seen"),
    # `onceward settle`, for a person who knows that the effect was made
    Transition(RELEASED, "settle", COMPLETED, "the record seen"),
    Transition(PARKED, "settle", COMPLETED, "the record seen"),
    Transition(IN_PROGRESS, "settle", COMPLETED, "the lapsed record seen"),
    # a message that no dead-letter queue takes, in its key's record or in a separate one
    Transition(ABSENT, "keep", PARKED, "absent"),
    Transition(RELEASED, "keep", PARKED, "the record seen"),
    Transition(PARKED, "keep", PARKED, "the record seen"),
    # claim, effect and completion in one write
    Transition(ABSENT, "transact", COMPLETED, "absent"),
    Transition(IN_PROGRESS, "transact", COMPLETED, "owner, or the lapsed record seen"),
    Transition(RELEASED, "transact", COMPLETED, "the record seen"),
    Transition(COMPLETED, "transact", COMPLETED, "the expired record seen"),
    Transition(COMPLETED, "expire", ABSENT, "past expires_at"),
    Transition(RELEASED, "expire", ABSENT, "past expires_at"),
    Transition(IN_PROGRESS, "expire", ABSENT, "past expires_at and the lease"),
)
