"""The protocol's writes: the claim of a key, and the next version of a record."""

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from onceward.core import worker
from onceward.core.policy import Policy
from onceward.core.record import IN_PROGRESS, Record, Reply, Write

STEPS: Final = "steps"  # what a record with steps needs a worker to know
NO_STEPS: Final = "[]"  # of a record that had attempts before its first one
LOCKED_FOR: Final = 1.0  # seconds after which to ask again for a key that an open transaction holds


def first_claim(key: str, owner: str, fingerprint: str | None, policy: Policy) -> Write:
    """Return the claim of a key that has no record, or a record that is free."""
    lease, keep = policy.lease, policy.retention
    name = worker.NAMED.get() or worker.process
    return tuple.__new__(  # what Write(...) does, in half the time
        Write,
        (key, IN_PROGRESS, owner, 0, 0, 1, fingerprint, None, None, None, lease, keep, 0.0, name, None, None, policy),
    )


def locked(claim: Write) -> Reply:
    """Return the reply that stands for a key in an open transaction: somebody holds it, and in a second you know more."""
    return Reply(False, claim._replace(owner="", fingerprint=None, worker=None, lease=LOCKED_FOR).at(0.0), 0.0)


class Becomes(Enum):
    """What a field becomes in a claim that replaces a record."""

    OWN = "as the claim has it"
    KEPT = "as the record has it"
    NEXT = "one more than the record has"
    LAPSED = "that the lease of the record's claim lapsed"


class Following(NamedTuple):
    """A field of a claim that replaces a record, which ``fresh`` forgets, or whose lease lapsed, or that was given back."""

    field: str
    fresh: Becomes
    lapsed: Becomes
    given_back: Becomes


# ``stores/sql/rules.py`` prints this table. All other fields are the claim's own.
FOLLOWING: Final = (
    Following("fence", Becomes.NEXT, Becomes.NEXT, Becomes.NEXT),
    Following("attempts", Becomes.OWN, Becomes.NEXT, Becomes.NEXT),
    Following("error", Becomes.OWN, Becomes.LAPSED, Becomes.KEPT),
    Following("created_at", Becomes.KEPT, Becomes.KEPT, Becomes.KEPT),
    Following("needs", Becomes.KEPT, Becomes.KEPT, Becomes.KEPT),
    Following("steps", Becomes.OWN, Becomes.KEPT, Becomes.KEPT),
)
LAPSED: Final = ("attempt ", " ended without a word: its lease lapsed")  # with the number between

_MADE: Final[dict[Becomes, Callable[[Write, Record, str], object]]] = {
    Becomes.OWN: lambda claim, _, field: getattr(claim, field),
    Becomes.KEPT: lambda _, held, field: getattr(held, field),
    Becomes.NEXT: lambda _, held, field: getattr(held, field) + 1,
    Becomes.LAPSED: lambda _, held, __: lapsed(held),
}


def next_claim(claim: Write, held: Record, *, fresh: bool) -> Write:
    """Return ``claim`` as the one that follows ``held``. A ``fresh`` one restarts the attempts; the fence always grows."""
    made = {}
    for field, if_fresh, if_lapsed, if_given_back in FOLLOWING:
        value = if_fresh if fresh else if_lapsed if held.status == IN_PROGRESS else if_given_back
        made[field] = _MADE[value](claim, held, field)
    return claim._replace(**made)  # type: ignore[arg-type]  # each is of its field's type


def ended(claim: Write, status: str, result: str | None, error: str | None) -> Write:
    """Return ``claim`` as a single write that makes it and ends it."""
    return claim._replace(status=status, result=result, error=error, lease=0.0, taking=None)


def next_version(
    record: Record,
    status: str,
    *,
    result: str | None = None,
    error: str | None = None,
    attempts: int | None = None,
    lease: float = 0.0,
    keep: float | None,
) -> Write:
    """Return the next version of a record: same owner, same fence, next beat."""
    key, _, owner, fence, beat, held_until, tries, mark, _, held_error, made, _, _, by, needs, did = record
    if attempts is not None:
        tries = attempts
    until = 0.0
    if status == IN_PROGRESS:  # a renewal
        until = held_until
        if error is None:
            error = held_error
    rest = (made, lease, keep, until, by, needs, did, None)
    return tuple.__new__(Write, (key, status, owner, fence, beat + 1, tries, mark, result, error, *rest))  # as above


def with_steps(record: Record, text: str, lease: float, policy: Policy) -> Write:
    """Return the renewal of a claim that also records its steps.

    The need stays when the key is completed: an earlier version would keep the steps when it claims the expired key anew.
    """
    needs = (record.needs or "").split()
    write = next_version(record, IN_PROGRESS, lease=lease, keep=policy.retention)
    return write._replace(steps=text, needs=" ".join(needs if STEPS in needs else [*needs, STEPS]))


def lapsed(record: Record) -> str:
    """Return the recorded error of a claim that was taken over."""
    return f"{LAPSED[0]}{record.attempts}{LAPSED[1]}"
