"""The state machine: this file alone decides about a record's status.

``RULES`` says what a worker does about the record it meets. ``TRANSITIONS`` lists every change a record can make. Both are
data: ``docs/draw_states.py`` draws the diagram from them, and the interleaving explorer checks every write against them.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from onceward.core import conditions
from onceward.core.comparisons import Clause, Comparison, Every, meets
from onceward.core.conditions import Condition, Look, all_of
from onceward.core.policy import Policy
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED, Record, Write
from onceward.core.writes import NO_STEPS, STEPS, ended, first_claim, lapsed, next_claim, next_version


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

    @property
    def status(self) -> str:
        """The statuses, in words."""
        if self.statuses is None:
            return "any"
        return " or ".join(sorted(self.statuses)) or "any not known to this version"

    @property
    def when(self) -> str:
        """The conditions, in words."""
        return ", ".join(condition.says for condition in self.conditions)


def _is(*statuses: str) -> frozenset[str]:
    return frozenset(statuses)


UNKNOWN_NEEDS = Condition("needs a feature not known to this version", lambda k: bool(unknown_needs(k.held)))
# The first rule that holds decides about a record. A store that can prints them as one expression of its own.
RULES: tuple[Rule, ...] = (
    Rule(_is(), (), Verdict.UNKNOWN),
    Rule(None, (UNKNOWN_NEEDS,), Verdict.UNKNOWN),
    Rule(_is(IN_PROGRESS), (conditions.MINE,), Verdict.WON),
    Rule(None, (conditions.EXPIRED, conditions.LEASE_OVER), Verdict.START),
    Rule(None, (conditions.DIFFERS,), Verdict.MISMATCH),
    Rule(_is(COMPLETED), (), Verdict.REPLAY),
    Rule(_is(PARKED), (), Verdict.PARKED),
    Rule(_is(IN_PROGRESS), (conditions.LEASE_LIVE,), Verdict.BUSY),
    Rule(_is(IN_PROGRESS), (conditions.PARKS_LAPSED,), Verdict.PARK),
    Rule(_is(IN_PROGRESS, RELEASED), (conditions.USED_UP,), Verdict.PARK),
    Rule(_is(IN_PROGRESS, RELEASED), (), Verdict.NEXT),
)
_Checks = tuple[tuple[Callable[[Look], bool], Verdict], ...]


def by_status(rules: tuple[Rule, ...]) -> dict[str, _Checks]:
    """Return what is left to check for each status; "" stands for one that this version does not know."""
    return {
        status: tuple(
            (all_of(rule.conditions), rule.verdict)
            for rule in rules
            if rule.statuses is None or status in (rule.statuses or _is(""))
        )
        for status in (*STATUSES, "")
    }


CHECKS = by_status(RULES)


def unknown_needs(record: Record) -> list[str]:
    """Return the features that a record needs and this version does not know."""
    return [need for need in record.needs.split() if need not in NEEDS] if record.needs else []


def is_known(record: Record) -> bool:
    """Return whether this version knows what a record means. If not, it must not change the record."""
    return record.status in STATUSES and not unknown_needs(record)


def decide(held: Record | None, now: float, owner: str, fingerprint: str | None, policy: Policy) -> Verdict:
    """Return what a worker does about the record it met.

    Args:
        held: the record in the store, or None.
        now: the store's own time (seconds), never the worker's.
        owner: the owner id of the worker's bid.
        fingerprint: the fingerprint of its input, or None to ask for none.
        policy: the guard's options.
    """
    if held is None:
        return Verdict.START
    look = Look(held, now, owner, fingerprint, policy)
    for holds, verdict in CHECKS.get(held.status) or CHECKS[""]:
        if holds(look):
            return verdict
    raise AssertionError("the last rule of each status always holds")


def taking(write: Write, held: Record, now: float) -> Write | None:
    """Return the write by which an insert takes a record that is free. None: it is not free, or was the insert's own.

    A copy of a request can arrive late. It must not open again what its own claim has ended.
    """
    policy = write.taking
    if policy is None or held.owner == write.owner:
        return None
    if held.status == COMPLETED and (held.expires_at is None or now < held.expires_at):
        return None  # what the table says, too, in a tenth of the time: most duplicates end here
    verdict = decide(held, now, write.owner, write.fingerprint, policy)
    return next_claim(write, held, fresh=verdict is Verdict.START) if verdict in FREE else None


def has_taken_over(won: Record, before: Record | None) -> bool:
    """Return whether a claim replaced one whose lease had ended; ``before`` is the replaced record."""
    return before is not None and before.status == IN_PROGRESS and won.attempts > 1


class Transition(NamedTuple):
    """One change of a record, the step that makes it, and its condition in the store."""

    source: str
    step: str
    target: str
    condition: str


ABSENT = "absent"
TRANSITIONS: tuple[Transition, ...] = (
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
    # `onceward retry --from`, for a person who has looked
    Transition(COMPLETED, "retry", RELEASED, "the record seen"),
    Transition(RELEASED, "retry", RELEASED, "the record seen"),
    Transition(PARKED, "retry", RELEASED, "the record seen"),
    Transition(IN_PROGRESS, "retry", RELEASED, "the lapsed record seen"),
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


# --- how a claim ends ----------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """How a claim ends: the status it leaves and what is recorded with it."""

    status: str
    result: str | None = None
    error: str | None = None


class Unbegun(Outcome):
    """A key given back before its handler has begun: no attempt counts, and no input is bound."""


def completed(result: str | None, error: str | None = None) -> Outcome:
    """The handler is done. A ``result`` of None cannot be replayed, and ``error`` then says why."""
    return tuple.__new__(Outcome, (COMPLETED, result, error))  # what Outcome(...) does, in half the time


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
    """Not retried until an operator clears it."""
    return Outcome(PARKED, None, error)


def last_write(record: Record, outcome: Outcome, policy: Policy) -> Write:
    """Return the write that ends a claim with ``outcome``."""
    if type(outcome) is Unbegun:
        return unclaimed(record, policy)
    status, result, error = outcome
    return next_version(record, status, result=result, error=error, keep=None if status == PARKED else policy.retention)


def unclaimed(record: Record, policy: Policy) -> Write:
    """Return the write that gives back a claim whose handler has not begun. It counts no attempt."""
    attempts = record.attempts - 1
    back = next_version(record, RELEASED, attempts=attempts, error=record.error, keep=policy.retention)
    return back if attempts else back._replace(fingerprint=None)  # no handler saw this input, so do not bind it


class Ending(Enum):
    """What an owner whose final write was not made learns from the current record."""

    DONE = "it was made before, and its reply was lost"
    AGAIN = "a heartbeat of mine came in between"
    LOST = "the key has gone on without me"


def judge(held: Record | None, owner: str, status: str) -> Ending:
    """Return what ``held`` means for an owner that tried to leave the key in ``status``."""
    if held is None or held.owner != owner or unknown_needs(held):
        return Ending.LOST
    if held.status == status:
        return Ending.DONE
    return Ending.AGAIN if held.status == IN_PROGRESS else Ending.LOST


def is_mine(held: Record | None, owner: str) -> bool:
    """Return whether ``owner`` still has the claim."""
    return held is not None and held.owner == owner and held.status == IN_PROGRESS and not unknown_needs(held)


# --- for operators ------------------------------------------------------------------------------------------------


def unparked(record: Record) -> Write | None:
    """Return the write that lets a parked key run again with all attempts; None when it is not parked."""
    if record.status != PARKED:
        return None
    write = next_version(record, RELEASED, attempts=0, error=record.error, keep=Policy().retention)
    # The next attempt is the first one again, and must still know that there were others.
    return write if write.steps is not None else write._replace(steps=NO_STEPS)


def retried(record: Record, steps: str) -> Write | None:
    """Return the write that lets a key run again with fewer recorded ``steps``; None when its status is unknown.

    The caller has checked that no worker holds it, and that it keeps no message.
    """
    if not is_known(record):
        return None
    error = record.error if record.status != IN_PROGRESS else lapsed(record)
    return next_version(record, RELEASED, attempts=0, error=error, keep=Policy().retention)._replace(steps=steps)


def parked_by_hand(record: Record, reason: str) -> Write | None:
    """Return the write that parks a key; None when it is completed (final), already parked, or in an unknown status."""
    if record.status not in {IN_PROGRESS, RELEASED}:
        return None
    return next_version(record, PARKED, error=reason, keep=None)


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


# --- for readers ----------------------------------------------------------------------------------------------------


def is_live(record: Record, now: float) -> bool:
    """Return whether a worker holds this key at the store's time ``now``. An unknown record can be held, too."""
    return (record.status == IN_PROGRESS or not is_known(record)) and now < record.lease_until


# What people ask for by name: the statuses, and what follows from a record and the store's time. LAPSED: the worker that
# claimed the key has vanished. EXPIRED: garbage collection can delete the record, if no worker holds it.
STATES: Final[dict[str, Clause]] = {
    **{status: Comparison("status", "=", status) for status in sorted(STATUSES)},
    "LAPSED": Every((Comparison("status", "=", IN_PROGRESS), Comparison("lease_until", "<="))),
    "EXPIRED": Comparison("expires_at", "<="),
}


def is_lapsed(record: Record, now: float) -> bool:
    """Return whether a record is LAPSED at the store's time ``now``."""
    return meets(record, STATES["LAPSED"], now)


def is_expired(record: Record, now: float) -> bool:
    """Return whether a record is EXPIRED at the store's time ``now``."""
    return meets(record, STATES["EXPIRED"], now)
