"""The protocol's writes: the claim of a key, and the next version of a record."""

from typing import Final, NamedTuple

from onceward.core import history, worker
from onceward.core.policy import Policy
from onceward.core.record import COMPLETED, IN_PROGRESS, Record, Reply, Write

STEPS: Final = "steps"  # what a record with steps needs a worker to know
NO_STEPS: Final = "[]"  # of a record that had attempts before its first one
LONGEST_SEND: Final = 30.0  # seconds of a send lease: a crash delays a message by no more
_SILENT: Final = frozenset({IN_PROGRESS, COMPLETED})  # a first attempt writes no history when it gets there
# Seconds before a lapsed claim that waits for a person expires, besides its retention: longer than any retention (policy.LONGEST).
WAITS: Final = 2e10
LOCKED_FOR: Final = 1.0  # seconds after which to ask again for a key that an open transaction holds


class Provenance(NamedTuple):
    """Where a call comes from: the fields of a record that have these names."""

    origin: str | None = None
    input: str | None = None
    trace: str | None = None


UNKNOWN: Final = Provenance()


def first_claim(
    key: str, owner: str, fingerprint: str | None, policy: Policy, provenance: Provenance = UNKNOWN
) -> Write:
    """Return the claim of a key that has no record, or a record that is free."""
    origin, input_, trace = provenance
    lease, keep = policy.lease, None if input_ is not None else policy.retention
    if keep is not None and policy.on_lapse == "park":
        keep += WAITS
    name = worker.NAMED.get() or worker.process
    fields = (key, IN_PROGRESS, owner, 0, 0, 1, fingerprint, None, None, None, lease, keep, 0.0, name, None, None,
        None, None, origin, input_, None, trace)  # fmt: skip
    return tuple.__new__(Write, fields)  # what Write(...) does, in half the time


def kept(policy: Policy) -> float | None:
    """Return for how many seconds a claim stays after its lease; None is for ever. The retention can be read back from it."""
    if policy.on_lapse != "park" or policy.retention is None:
        return policy.retention
    return WAITS + policy.retention


def waits(record: Record) -> bool:
    """Return whether a record stays for a person, if its lease lapses, and so never expires in practice."""
    return record.expires_at is not None and record.expires_at - record.lease_until >= WAITS


def expiry_of(record: Record) -> float | None:
    """Return when a record expires, for people; None is never."""
    return None if waits(record) else record.expires_at


def retention_of(record: Record) -> float | None:
    """Return the retention that a record knows, in seconds; None is for ever."""
    if record.expires_at is None:
        return None
    return max(0.0, record.expires_at - record.lease_until - (WAITS if waits(record) else 0.0))


def locked(claim: Write) -> Reply:
    """Return the reply that stands for a key in an open transaction: somebody holds it, and in a second you know more."""
    return Reply(False, claim._replace(owner="", fingerprint=None, worker=None, lease=LOCKED_FOR).at(0.0), 0.0)


# What a claim can have from the record that it replaces, besides its fence.
CARRIED: Final = ("attempts", "error", "created_at", "needs", "steps", "origin", "history")


def next_claim(claim: Write, held: Record, *, fresh: bool) -> Write:
    """Return ``claim`` as the one that follows ``held``. A ``fresh`` one is as that of a new key; the fence always grows."""
    claim = claim._replace(fence=held.fence + 1, needs=held.needs)
    if fresh:
        return claim
    error, past = (lapsed(held), history.lapsed) if held.status == IN_PROGRESS else (held.error, history.closed)
    return claim._replace(
        attempts=held.attempts + 1,
        error=error,
        created_at=held.created_at,
        steps=held.steps,
        origin=held.origin,
        history=past(held),
    )


def ended(claim: Write, status: str, result: str | None, error: str | None) -> Write:
    """Return ``claim`` as a single write that makes it and ends it."""
    return claim._replace(status=status, result=result, error=error, lease=0.0)


def next_version(
    record: Record,
    status: str,
    keep: float | None,
    result: str | None = None,
    error: str | None = None,
    *,
    attempts: int | None = None,
    lease: float = 0.0,
) -> Write:
    """Return the next version of a record: same owner, same fence, next beat."""
    (key, _, owner, fence, beat, held_until, tries, mark, _, held_error, created_at, _, at, by, needs, did,
         _, _, origin, input_, past, trace) = record[:]  # fmt: skip # as above
    if past is not None or tries > 1 or created_at != at or status not in _SILENT:
        past = history.following(record, status, error)
    if attempts is not None:
        tries = attempts
    until = 0.0
    if status == IN_PROGRESS:  # a renewal
        until = held_until
        if error is None:
            error = held_error
    if status == COMPLETED:
        input_ = None  # nothing runs the handler with it again
    elif input_ is not None:
        keep = None  # nobody else may have the input
    fields = (key, status, owner, fence, beat + 1, tries, mark, result, error, created_at, lease, keep, until, by, needs,
        did, None, None, origin, input_, past, trace)  # fmt: skip
    return tuple.__new__(Write, fields)  # as above


def with_messages(completion: Write, unsent: str, policy: Policy) -> Write:
    """Return a completion that carries messages. Its worker has the send lease. The record does not expire before they are sent."""
    return completion._replace(unsent=unsent, due=send_lease(policy), keep=None)


def send_lease(policy: Policy) -> float:
    """Return for how many seconds the worker that completes a key is the only one who sends its messages."""
    return min(policy.lease, LONGEST_SEND)


def renewal(record: Record, lease: float, policy: Policy, leap: int = 0) -> Write:
    """Return the renewal of a claim for ``lease`` seconds, whose beat grows by ``leap`` more than by one."""
    write = next_version(record, IN_PROGRESS, lease=lease, keep=kept(policy))
    return write._replace(beat=write.beat + leap) if leap else write


def with_steps(record: Record, text: str, lease: float, policy: Policy) -> Write:
    """Return the renewal of a claim that also records its steps.

    The need stays when the key is completed: an earlier version would keep the steps when it claims the expired key anew.
    """
    needs = (record.needs or "").split()
    return renewal(record, lease, policy)._replace(
        steps=text, needs=" ".join(needs if STEPS in needs else [*needs, STEPS])
    )


def lapsed(record: Record) -> str:
    """Return the recorded error of a claim that was taken over."""
    return f"attempt {record.attempts} ended without a word: its lease lapsed"
