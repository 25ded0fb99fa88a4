"""The protocol's writes: the claim of a key, and the next version of a record."""

from typing import Final

from onceward.core import worker
from onceward.core.policy import Policy
from onceward.core.record import IN_PROGRESS, Record, Reply, Write

STEPS: Final = "steps"  # what a record with steps needs a worker to know
NO_STEPS: Final = "[]"  # of a record that had attempts before its first one
LOCKED_FOR: Final = 1.0  # seconds after which to ask again for a key that an open transaction holds


def first_claim(key: str, owner: str, fingerprint: str | None, policy: Policy) -> Write:
    """Return the claim of a key that has no record."""
    lease, keep = policy.lease, policy.retention
    name = worker.NAMED.get() or worker.process
    fields = (key, IN_PROGRESS, owner, 0, 0, 1, fingerprint, None, None, None, lease, keep, 0.0, name, None, None)
    return tuple.__new__(Write, fields)  # what Write(...) does, in half the time


def locked(claim: Write) -> Reply:
    """Return the reply that stands for a key in an open transaction: somebody holds it, and in a second you know more."""
    return Reply(False, claim._replace(owner="", fingerprint=None, worker=None, lease=LOCKED_FOR).at(0.0), 0.0)


def next_claim(claim: Write, held: Record, *, fresh: bool) -> Write:
    """Return ``claim`` as the one that follows ``held``. A ``fresh`` one restarts the attempts; the fence always grows."""
    return claim._replace(
        fence=held.fence + 1,
        attempts=1 if fresh else held.attempts + 1,
        error=None if fresh else lapsed(held) if held.status == IN_PROGRESS else held.error,
        created_at=held.created_at,
        needs=held.needs,
        steps=None if fresh else held.steps,
    )


def ended(claim: Write, status: str, result: str | None, error: str | None) -> Write:
    """Return ``claim`` as a single write that makes it and ends it."""
    return claim._replace(status=status, result=result, error=error, lease=0.0)


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
    key, _, owner, fence, beat, held_until, tries, mark, _, held_error, made, _, _, by, needs, chain = record
    if attempts is not None:
        tries = attempts
    until = 0.0
    if status == IN_PROGRESS:  # a renewal
        until = held_until
        if error is None:
            error = held_error
    fields = (
        key,
        status,
        owner,
        fence,
        beat + 1,
        tries,
        mark,
        result,
        error,
        made,
        lease,
        keep,
        until,
        by,
        needs,
        chain,
    )
    return tuple.__new__(Write, fields)  # as above


def with_steps(record: Record, text: str, lease: float, policy: Policy) -> Write:
    """Return the renewal of a claim that also records its steps.

    The need stays when the key is completed: an earlier version would keep the steps when it claims the expired key anew.
    """
    needs = (record.needs or "").split()
    write = next_version(record, IN_PROGRESS, lease=lease, keep=policy.retention)
    return write._replace(steps=text, needs=" ".join(needs if STEPS in needs else [*needs, STEPS]))


def lapsed(record: Record) -> str:
    """Return the recorded error of a claim that was taken over."""
    return f"attempt {record.attempts} ended without a word: its lease lapsed"
