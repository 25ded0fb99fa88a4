"""What people are told of a record: when it changed last, what it is besides its status, and what they can do about it."""

from collections.abc import Callable
from enum import Enum

from onceward.core.protocol import is_expired, is_known, is_lapsed, is_live, message_in
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED, Record

# What a record is besides its status, in the words of people.
VIEWS: dict[str, Callable[[Record, float], bool]] = {"LAPSED": is_lapsed, "EXPIRED": is_expired}


def is_in(record: Record, now: float, status: str) -> bool:
    """Tell whether a record has a status, or is LAPSED or EXPIRED, at the store's time ``now``."""
    view = VIEWS.get(status)
    return record.status == status if view is None else view(record, now)


def last_change(record: Record, now: float) -> float:
    """Return when a record was written last; of a heartbeat by a version without ``updated_at`` nothing is known.

    The write that ends a claim leaves no lease, so ``lease_until`` is the time of that write.
    """
    ended = record.created_at if record.status == IN_PROGRESS else record.lease_until
    return min(max(ended, record.updated_at or record.created_at), now)


class NextStep(Enum):
    """What a person can do about a record."""

    WAIT = "a worker holds it"
    TAKE_OVER = "its worker has vanished"
    FORGOTTEN = "it is expired"
    DONE = "it is completed"
    AGAIN = "it was given back"
    UNPARK = "it is parked"
    SEND = "it is parked, and keeps a message"
    UPGRADE = "this version does not know its status, or a feature that it needs"


def next_step(record: Record, now: float) -> NextStep:
    """Return what a person can do about a record, at the store's time ``now``."""
    if is_live(record, now):
        return NextStep.WAIT
    if not is_known(record):
        return NextStep.UPGRADE
    if is_expired(record, now):
        return NextStep.FORGOTTEN
    if message_in(record) is not None:
        return NextStep.SEND
    steps = {
        IN_PROGRESS: NextStep.TAKE_OVER,
        COMPLETED: NextStep.DONE,
        RELEASED: NextStep.AGAIN,
        PARKED: NextStep.UNPARK,
    }
    return steps[record.status]
