"""The state machine: this file alone decides about a record's status.

``RULES`` says what a worker does about the record it meets. ``docs/transitions.py`` lists every change a record can make. Both are
data: the docs are drawn from them, and the interleaving explorer checks every write against the changes.
"""

from enum import Enum
from typing import NamedTuple

from onceward.core import conditions, history
from onceward.core.conditions import Condition, Look
from onceward.core.policy import Policy
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED, Record, Write
from onceward.core.writes import NO_STEPS, STEPS, ended, first_claim, lapsed, next_version, retention_of, with_messages


class Verdict(Enum):
    """What a worker does about the record it met."""

    START = "claim: attempt 1, new fence"
    NEXT = "claim: attempt + 1, larger fence"
    WON = "already mine: the reply to my write was lost"
    BUSY = "busy until the lease ends"
    PARK = "park"
    PARKED = "parked"
    REPLAY = "replay the recorded result"
    MISMATCH = "mismatch: another input under the same key"
    UNKNOWN = "refused: a newer version may know what it means"
    USED = "refused: this owner has had its claim"


FREE = frozenset({Verdict.START, Verdict.NEXT})
STATUSES = frozenset({IN_PROGRESS, COMPLETED, RELEASED, PARKED})
NEEDS: frozenset[str] = frozenset({STEPS})  # the features that this version knows


class Rule(NamedTuple):
    """One row of the decision table: what follows if all ``conditions`` hold, and no row above it does.

    Attributes:
        statuses: the record's; None is any, and an empty set is any that this version does not know.
    """

    statuses: frozenset[str] | None
    conditions: tuple[Condition, ...]
    verdict: Verdict


def _is(*statuses: str) -> frozenset[str]:
    return frozenset(statuses)


def needs_what_this_version_does_not_know(k: Look) -> bool:
    """Return whether the record needs a feature that this version lacks."""
    return k.held.needs is not None and bool(unknown_needs(k.held))


# The first rule that holds decides about a record.
RULES: tuple[Rule, ...] = (
    Rule(_is(), (), Verdict.UNKNOWN),
    Rule(None, (needs_what_this_version_does_not_know,), Verdict.UNKNOWN),
    Rule(_is(IN_PROGRESS), (conditions.same_owner,), Verdict.WON),
    Rule(None, (conditions.expired, conditions.no_live_lease), Verdict.START),
    Rule(None, (conditions.fingerprint_differs,), Verdict.MISMATCH),
    Rule(_is(COMPLETED), (), Verdict.REPLAY),
    Rule(_is(PARKED), (), Verdict.PARKED),
    Rule(_is(IN_PROGRESS), (conditions.lease_live,), Verdict.BUSY),
    Rule(_is(IN_PROGRESS), (conditions.on_lapse_parks,), Verdict.PARK),
    Rule(_is(IN_PROGRESS, RELEASED), (conditions.attempts_used_up,), Verdict.PARK),
    Rule(_is(IN_PROGRESS, RELEASED), (), Verdict.NEXT),
)
# An owner that a client made is for one claim. A repeated request is honoured within the lease that it won.
SINGLE_USE: tuple[Rule, ...] = (
    *RULES[:2],
    Rule(
        _is(IN_PROGRESS),
        (conditions.same_owner, conditions.lease_live, conditions.fingerprint_differs),
        Verdict.MISMATCH,
    ),
    Rule(_is(IN_PROGRESS), (conditions.same_owner, conditions.lease_live), Verdict.WON),
    Rule(None, (conditions.same_owner,), Verdict.USED),
    *(rule for rule in RULES[2:] if rule.verdict is not Verdict.WON),
)
_Checks = tuple[tuple[tuple[Condition, ...], Verdict], ...]


def by_status(rules: tuple[Rule, ...]) -> dict[str, _Checks]:
    """Return what is left to check for each status; "" stands for one that this version does not know."""
    return {
        status: tuple(
            (rule.conditions, rule.verdict)
            for rule in rules
            if rule.statuses is None or status in (rule.statuses or _is(""))
        )
        for status in (*STATUSES, "")
    }


CHECKS, _SINGLE_USE_CHECKS = by_status(RULES), by_status(SINGLE_USE)


def unknown_needs(record: Record) -> list[str]:
    """Return the features that a record needs and this version does not know."""
    return [need for need in record.needs.split() if need not in NEEDS] if record.needs else []


def is_known(record: Record) -> bool:
    """Return whether this version knows what a record means. If not, it must not change the record."""
    return record.status in STATUSES and not unknown_needs(record)


def is_live(record: Record, now: float) -> bool:
    """Return whether a worker holds this key at the store's time ``now``. An unknown record can be held, too."""
    return (record.status == IN_PROGRESS or not is_known(record)) and now < record.lease_until


def decide(
    held: Record | None,
    now: float,
    owner: str,
    fingerprint: str | None,
    policy: Policy,
    *,
    single_use: bool = False,
) -> Verdict:
    """Return what a worker does about the record it met.

    Args:
        held: the record in the store, or None.
        now: the store's own time (seconds), never the worker's.
        owner: the owner id of the worker's bid.
        fingerprint: the fingerprint of its input, or None to ask for none.
        policy: the guard's options.
        single_use: whether a client made the owner id, for one claim.
    """
    if held is None:
        return Verdict.START
    look = Look(held, now, owner, fingerprint, policy)
    checks = _SINGLE_USE_CHECKS if single_use else CHECKS
    for all_of, verdict in checks.get(held.status) or checks[""]:
        for holds in all_of:
            if not holds(look):
                break
        else:
            return verdict
    raise AssertionError("the last rule of each status always holds")


def has_taken_over(won: Record, before: Record | None) -> bool:
    """Return whether a claim replaced one whose lease had ended; ``before`` is the replaced record."""
    return before is not None and before.status == IN_PROGRESS and won.attempts > 1


# --- how a claim ends ----------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """How a claim ends: the status it leaves and what is recorded with it; ``unsent`` are messages, for a completion."""

    status: str
    result: str | None = None
    error: str | None = None
    unsent: str | None = None


class Unbegun(Outcome):
    """A key given back before its handler has begun: no attempt counts, and no input is bound."""


def completed(result: str | None, error: str | None = None) -> Outcome:
    """The handler is done. A ``result`` of None cannot be replayed, and ``error`` then says why."""
    return tuple.__new__(Outcome, (COMPLETED, result, error, None))  # what Outcome(...) does, in half the time


def failed(record: Record, policy: Policy, error: str) -> Outcome:
    """The handler raised: give the key back, or park it by ``on_error`` or because no attempt is left."""
    park = policy.on_error == "park" or (policy.max_attempts is not None and record.attempts >= policy.max_attempts)
    return Outcome(PARKED if park else RELEASED, None, error)


def released(error: str | None = None) -> Outcome:
    """Given back for a retry."""
    return Outcome(RELEASED, None, error)


def unbegun() -> Outcome:
    """Given back before the handler has begun."""
    return Unbegun(RELEASED)


def parked(error: str | None = None) -> Outcome:
    """Not retried until an operator unparks it."""
    return Outcome(PARKED, None, error)


def last_write(record: Record, outcome: Outcome, policy: Policy) -> Write | None:
    """Return the write that ends a claim with ``outcome``; None if it has ended: its version may still be current."""
    if record.status != IN_PROGRESS or (record.needs and unknown_needs(record)):
        return None
    if type(outcome) is Unbegun:
        return unclaimed(record, policy)
    status, result, error, unsent = outcome[:]
    keep = None if status == PARKED else policy.retention
    write = next_version(record, status, keep, result, error)
    return write if unsent is None else with_messages(write, unsent, policy)


def given_up(record: Record) -> Write:
    """Return the write that parks a key whose worker has vanished, or whose attempts are used up."""
    error = lapsed(record) if record.status == IN_PROGRESS else record.error
    return _by_another(next_version(record, PARKED, error=error, keep=None), record)


def unclaimed(record: Record, policy: Policy) -> Write:
    """Return the write that gives back a claim whose handler has not begun. It counts no attempt."""
    attempts = record.attempts - 1
    back = next_version(record, RELEASED, attempts=attempts, error=record.error, keep=policy.retention)
    back = back._replace(history=history.without_begin(record))
    if attempts or record.steps is not None:  # an operator can have set the attempts to 0
        return back
    # No handler saw this input, so do not bind it.
    return back._replace(fingerprint=None, input=None, keep=policy.retention)


class Ending(Enum):
    """What an owner whose final write was not made learns from the current record."""

    DONE = "it was made before, and its reply was lost"
    AGAIN = "a heartbeat of mine came in between"
    LOST = "the key has gone on without me"


def judge(held: Record | None, owner: str, status: str, fence: int | None = None) -> Ending:
    """Return what ``held`` means for an owner that tried to leave the key in ``status``; ``fence`` is its claim's, if it has one."""
    if held is None or held.owner != owner or fence not in {None, held.fence} or unknown_needs(held):
        return Ending.LOST
    if held.status == status:
        return Ending.DONE
    return Ending.AGAIN if held.status == IN_PROGRESS else Ending.LOST


def is_mine(held: Record | None, mine: Record) -> bool:
    """Return whether the claim that has seen the version ``mine`` still stands."""
    if held is None or held.owner != mine.owner or held.fence != mine.fence or held.status != IN_PROGRESS:
        return False
    return not (held.needs and unknown_needs(held))


# --- for operators ------------------------------------------------------------------------------------------------


def unparked(record: Record) -> Write | None:
    """Return the write that lets a parked key run again with all attempts; None when it is not parked."""
    if record.status != PARKED:
        return None
    write = next_version(record, RELEASED, attempts=0, error=record.error, keep=Policy().retention)
    # The next attempt is the first one again, and must still know that there were others.
    return write if write.steps is not None else write._replace(steps=NO_STEPS)


def retried(record: Record, steps: str) -> Write | None:
    """Return the write that lets a key run again with fewer recorded ``steps``; None if that cannot be.

    Its status is unknown, or it has unsent messages. The caller has checked that no worker holds it, and that it keeps no message.
    """
    if not is_known(record) or has_messages(record):
        return None
    error = record.error if record.status != IN_PROGRESS else lapsed(record)
    write = next_version(record, RELEASED, attempts=0, error=error, keep=_longest(record))
    if record.status == COMPLETED:
        write = write._replace(history=history.redone(record))
    return _by_another(write, record)._replace(steps=steps)


def _longest(record: Record) -> float | None:
    """Return for how many seconds a key stays that can run again: as its record says, or longer. None is for ever.

    Without its record, a later delivery would make all of its steps again. A parked record does not know its policy.
    """
    if record.status != PARKED and record.expires_at is None:
        return None
    least = Policy().retention
    return None if least is None else max(least, retention_of(record) or 0.0)


def parked_by_hand(record: Record, reason: str) -> Write | None:
    """Return the write that parks a key; None when it is completed (final), already parked, or in an unknown status."""
    if record.status not in {IN_PROGRESS, RELEASED}:
        return None
    return _by_another(next_version(record, PARKED, error=reason, keep=None), record)


def settled(record: Record, owner: str, result: str, retention: float | None) -> Write | None:
    """Return the write that completes a key by hand, under another owner: its last worker must not take it for its own.

    None: it is completed (final), or its status is unknown. The caller has checked that no worker holds it.
    """
    if record.status not in {IN_PROGRESS, RELEASED, PARKED}:
        return None
    write = next_version(record, COMPLETED, result=result, keep=retention)
    return write._replace(owner=owner, history=history.by_hand(record), worker=history.BY_HAND)


def _by_another(write: Write, record: Record) -> Write:
    """Return a write that ends the attempt of a worker that does not know it."""
    return write if record.status != IN_PROGRESS else write._replace(history=history.lapsed(record))


# --- messages that leave with a completion -------------------------------------------------------------------------


def has_messages(record: Record) -> bool:
    """Return whether a record has messages that this version can send."""
    return record.status == COMPLETED and record.unsent is not None and is_known(record)


def may_send(record: Record, now: float) -> bool:
    """Return whether anybody can send a record's messages at the store's time ``now``."""
    return record.due_at is not None and record.due_at <= now and has_messages(record)


# --- messages kept in parked records ---------------------------------------------------------------------------------


def message_in(record: Record) -> str | None:
    """Return the message that a parked record keeps in place of a result; None when it keeps none."""
    return record.result if record.status == PARKED else None


def keeping(record: Record, message: str | None, reason: str | None = None) -> Write | None:
    """Return the write that keeps a message in a record for ever; None when this record cannot keep one.

    Args:
        record: a parked record; with a ``reason``, also one that was given back.
        message: the text to keep; None removes it.
        reason: why the key is parked; None leaves the recorded reason.
    """
    if record.status not in ({PARKED} if reason is None else {PARKED, RELEASED}) or unknown_needs(record):
        return None
    return next_version(record, PARKED, result=message, error=reason or record.error, keep=None)


def parked_message(key: str, owner: str, message: str, reason: str) -> Write:
    """Return the write that parks a key that has no record, and keeps a message in it."""
    claim = first_claim(key, owner, None, Policy())
    return ended(claim, PARKED, message, reason)._replace(attempts=0, keep=None, worker=None)
