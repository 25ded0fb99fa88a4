"""What people see of a record: its last change, its state besides the status, and what to do about it."""

from collections.abc import Callable
from enum import Enum

from onceward.core.protocol import is_expired, is_known, is_lapsed, is_live, message_in
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED, Record

# States besides the status, named for people.
VIEWS: dict[str, Callable[[Record, float], bool]] = {"LAPSED": is_lapsed, "EXPIRED": is_expired}


def is_in(record: Record, now: float, status: str) -> bool:
    """Return whether a record has this status, or is LAPSED or EXPIRED, at the store's time ``now``."""
    view = VIEWS.get(status)
    return record.status == status if view is None else view(record, now)


def last_change(record: Record, now: float) -> float:
    """Return when a record was last written. Heartbeats of versions without ``updated_at`` do not show.

    The write that ends a claim leaves no lease, so ``lease_until`` is its time.
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
