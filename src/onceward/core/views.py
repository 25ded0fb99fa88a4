"""What people see of a record: its last change, and what to do about it."""

from enum import Enum
from typing import Final, NamedTuple

from onceward.core.comparisons import Clause, Comparison, Either, Every, meets
from onceward.core.protocol import STATUSES, has_messages, is_known, is_live, message_in
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED, Record

_LONGEST: Final = 100 * 366 * 86400.0  # seconds
_UNITS: Final = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


SOME_DAY: Final = 3e9  # seconds, a century: messages that are due later wait for a person
# What people ask for by name: the statuses, and what follows from a record and the store's time. LAPSED: the worker that
# claimed the key has vanished. EXPIRED: garbage collection can delete the record, if no worker holds it. UNSENT: it has messages
# to send. REFUSED: of its messages only those are left that a target refused.
STATES: Final[dict[str, Clause]] = {
    **{status: Comparison("status", "=", status) for status in sorted(STATUSES)},
    "LAPSED": Every((Comparison("status", "=", IN_PROGRESS), Comparison("lease_until", "<="))),
    "EXPIRED": Comparison("expires_at", "<="),
    "UNSENT": Comparison("due_at", "<=", -SOME_DAY),
    "REFUSED": Comparison("due_at", ">=", -SOME_DAY),
}


def is_lapsed(record: Record, now: float) -> bool:
    """Return whether a record is LAPSED at the store's time ``now``."""
    return meets(record, STATES["LAPSED"], now)


def is_expired(record: Record, now: float) -> bool:
    """Return whether a record is EXPIRED at the store's time ``now``."""
    return meets(record, STATES["EXPIRED"], now)


def last_change(record: Record, now: float) -> float:
    """Return when a record was last written. Heartbeats of versions without ``updated_at`` do not show.

    The write that ends a claim leaves no lease, so ``lease_until`` is its time.
    """
    ended = record.created_at if record.status == IN_PROGRESS else record.lease_until
    return min(max(record.created_at, ended, record.updated_at or record.created_at), now)


def unchanged_for(seconds: float) -> Clause:
    """Return what says that the last change was at least so long ago."""
    return Every(
        (
            Comparison("created_at", "<=", seconds),
            Either((Comparison("status", "=", IN_PROGRESS), Comparison("lease_until", "<=", seconds))),
            Either((Comparison("updated_at", "absent"), Comparison("updated_at", "<=", seconds))),
        )
    )


def changed_within(seconds: float) -> Clause:
    """Return what says that the last change was at most so long ago."""
    ended = Every((Comparison("status", "<>", IN_PROGRESS), Comparison("lease_until", ">=", seconds)))
    return Either((Comparison("created_at", ">=", seconds), ended, Comparison("updated_at", ">=", seconds)))


def relative(time: float, now: float) -> str:
    """Return a time relative to now: ``12 s ago``, ``in 3 h``."""
    seconds = abs(time - now)
    size, unit = next((unit for unit in _UNITS if seconds >= unit[0]), _UNITS[-1])
    span = f"{seconds / size:.0f} {unit}"
    return f"in {span}" if time > now else f"{span} ago"


class Criteria(NamedTuple):
    """Which records somebody looks for.

    Attributes:
        states: statuses, LAPSED or EXPIRED; a record in one of them is meant. None at all means any.
        older_than: seconds since the last change, at least.
        newer_than: seconds since the last change, at most.
    """

    states: tuple[str, ...] = ()
    older_than: float | None = None
    newer_than: float | None = None

    def check(self) -> None:
        """Raise ValueError if a state is unknown, or an age is not between 0 and 100 years."""
        for state in self.states:
            if state not in STATES:
                raise ValueError(f"unknown status {state}: choose one of {', '.join(STATES)}")
        for name, age in (("older_than", self.older_than), ("newer_than", self.newer_than)):
            if age is not None and not 0 <= age <= _LONGEST:
                raise ValueError(f"{name} {age:g} s: give from 0 s to 100 years")

    @property
    def clause(self) -> Clause:
        """All of this, as comparisons of a record."""
        terms: list[Clause] = [Either(tuple(STATES[state] for state in self.states))] if self.states else []
        if self.older_than is not None:
            terms.append(unchanged_for(self.older_than))
        if self.newer_than is not None:
            terms.append(changed_within(self.newer_than))
        return Every(tuple(terms))

    @property
    def are_about_messages(self) -> bool:
        """Whether every record that is meant has unsent messages."""
        return bool(self.states) and {"UNSENT", "REFUSED"}.issuperset(self.states)

    def are_within(self, statuses: frozenset[str]) -> bool:
        """Return whether every record that is meant has one of these statuses."""
        return bool(self.states) and all(_implies(STATES[state], statuses) for state in self.states)


def _implies(clause: Clause, statuses: frozenset[str]) -> bool:
    if isinstance(clause, Every):
        return any(_implies(term, statuses) for term in clause.terms)
    return (
        isinstance(clause, Comparison) and (clause.field, clause.sign) == ("status", "=") and clause.value in statuses
    )


ANY: Final = Criteria()


class NextStep(Enum):
    """What a person can do about a record."""

    WAIT = "a worker holds it"
    TAKE_OVER = "its worker has vanished"
    FORGOTTEN = "it is expired"
    DONE = "it is completed"
    AGAIN = "it was given back"
    UNPARK = "it is parked"
    SEND = "it is parked, and keeps a message"
    RELAY = "it is completed, and has messages to send"
    DECIDE = "it is completed, and a target has refused its messages"
    UPGRADE = "this version does not know its status, or a feature that it needs"


# What a person may complete by hand.
UNSETTLED: Final = {NextStep.TAKE_OVER, NextStep.FORGOTTEN, NextStep.AGAIN, NextStep.UNPARK, NextStep.SEND}


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
    if has_messages(record):
        return NextStep.DECIDE if meets(record, STATES["REFUSED"], now) else NextStep.RELAY
    steps = {
        IN_PROGRESS: NextStep.TAKE_OVER,
        COMPLETED: NextStep.DONE,
        RELEASED: NextStep.AGAIN,
        PARKED: NextStep.UNPARK,
    }
    return steps[record.status]
