"""The state machine: every decision about a record's status is made in this file, and nowhere else.

``RULES`` is what a worker that wants a key does about the record it meets; ``TRANSITIONS`` is every change a record can
make. Both are data: ``docs/draw_states.py`` draws the diagram from them and the interleaving explorer checks every write
against them.

Below them are the steps: generators that yield a store's requests and are sent the replies. Drive them with
``core.drive``, or by hand::

    steps = claim(store, bid)
    request = next(steps)
    outcome = steps.send(store.exchange(request))   # StopIteration carries the outcome

An exchange that fails is thrown in. If the error has a true attribute ``transient``, the step asks again; whether the
first write was made is found out by the version of the record, never assumed.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, TypeVar

from onceward.core.clock import Clock, boottime
from onceward.core.drive import Sleep, Steps
from onceward.core.policy import Policy
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED, Record, Reply, Write
from onceward.core.register import Register

T = TypeVar("T")


class Verdict(Enum):
    """What a worker that wants a key does about the record it met."""

    START = "claim: attempt 1, new fence"
    NEXT = "claim: attempt + 1, larger fence"
    WON = "already mine: the reply to my write was lost"
    BUSY = "busy until the lease ends"
    PARK = "park"
    PARKED = "parked"
    REPLAY = "replay the recorded result"
    MISMATCH = "mismatch: another input under the same key"


class Look(NamedTuple):
    """What a worker knows when it decides: the record held, the store's time, and its own bid."""

    held: Record | None
    now: float
    owner: str
    fingerprint: str | None
    policy: Policy


class Rule(NamedTuple):
    """One row of the decision table. ``holds`` may rely on every row above it having been refused."""

    status: str
    when: str
    holds: Callable[[Look], bool]
    verdict: Verdict


def _differs(look: Look) -> bool:
    held = look.held
    return (
        held is not None
        and look.fingerprint is not None
        and held.fingerprint is not None
        and look.fingerprint != held.fingerprint
    )


def _used_up(look: Look) -> bool:
    limit = look.policy.max_attempts
    return limit is not None and look.held is not None and look.held.attempts >= limit


# The first rule that holds decides. mypy cannot see that the first row excludes None below it, hence the `h and`.
RULES: tuple[Rule, ...] = (
    Rule("absent", "no record", lambda k: k.held is None, Verdict.START),
    Rule(
        IN_PROGRESS,
        "same owner as mine",
        lambda k: bool((h := k.held) and h.owner == k.owner and h.status == IN_PROGRESS),
        Verdict.WON,
    ),
    Rule(
        "any",
        "expired, with no live lease",
        lambda k: bool((h := k.held) and h.expires_at is not None and max(h.expires_at, h.lease_until) <= k.now),
        Verdict.START,
    ),
    Rule("any", "fingerprint differs", _differs, Verdict.MISMATCH),
    Rule(COMPLETED, "", lambda k: bool((h := k.held) and h.status == COMPLETED), Verdict.REPLAY),
    Rule(PARKED, "", lambda k: bool((h := k.held) and h.status == PARKED), Verdict.PARKED),
    Rule(
        IN_PROGRESS,
        "lease live",
        lambda k: bool((h := k.held) and h.status == IN_PROGRESS and k.now < h.lease_until),
        Verdict.BUSY,
    ),
    Rule(
        IN_PROGRESS,
        'lease lapsed, on_lapse="park"',
        lambda k: bool((h := k.held) and h.status == IN_PROGRESS and k.policy.on_lapse == "park"),
        Verdict.PARK,
    ),
    Rule("IN_PROGRESS or RELEASED", "attempts used up", _used_up, Verdict.PARK),
    Rule("IN_PROGRESS or RELEASED", "lease lapsed, or given back", lambda _: True, Verdict.NEXT),
)


def decide(held: Record | None, now: float, owner: str, fingerprint: str | None, policy: Policy) -> Verdict:
    """Return what a worker does about the record it met.

    Args:
        held: the record in the store, or None.
        now: the store's own time (seconds), never the worker's.
        owner: the owner id of the worker's bid.
        fingerprint: the fingerprint of its input, or None to ask for none.
        policy: the guard's options.
    """
    look = Look(held, now, owner, fingerprint, policy)
    for rule in RULES:
        if rule.holds(look):
            return rule.verdict
    raise AssertionError("the last rule always holds")


class Transition(NamedTuple):
    """One change that a record can make: by what step, and under which condition in the store."""

    source: str
    step: str
    target: str
    condition: str


ABSENT = "absent"
TRANSITIONS: tuple[Transition, ...] = (
    Transition(ABSENT, "claim", IN_PROGRESS, "absent"),
    Transition(IN_PROGRESS, "heartbeat", IN_PROGRESS, "owner"),
    Transition(IN_PROGRESS, "complete", COMPLETED, "owner"),
    Transition(IN_PROGRESS, "release", RELEASED, "owner"),
    Transition(IN_PROGRESS, "park", PARKED, "owner, or the lapsed record seen"),
    Transition(IN_PROGRESS, "take over", IN_PROGRESS, "the lapsed record seen"),
    Transition(RELEASED, "claim", IN_PROGRESS, "the record seen"),
    Transition(RELEASED, "park", PARKED, "the record seen"),
    Transition(COMPLETED, "claim", IN_PROGRESS, "the expired record seen"),
    Transition(PARKED, "unpark", RELEASED, "the record seen"),
    Transition(COMPLETED, "expire", ABSENT, "past expires_at"),
    Transition(RELEASED, "expire", ABSENT, "past expires_at"),
    Transition(IN_PROGRESS, "expire", ABSENT, "past expires_at and the lease"),
)


class Bid(NamedTuple):
    """What a worker asks for: a key under a policy, as an owner nobody else can be."""

    key: str
    owner: str
    fingerprint: str | None
    policy: Policy
    clock: Clock = boottime


class Won(NamedTuple):
    """The claim is mine until ``until`` on my own clock (seconds), which is before it ends in the store."""

    record: Record
    until: float


class Replay(NamedTuple):
    """The key is completed; ``left`` is how many seconds its record stays, None for ever."""

    record: Record
    left: float | None


class Refused(NamedTuple):
    """The key cannot be had: BUSY, PARKED or MISMATCH; ``wait`` is the seconds until it may be worth asking again."""

    verdict: Verdict
    record: Record
    wait: float


class Settled(NamedTuple):
    """The record as the settling write left it."""

    record: Record


class Lost(NamedTuple):
    """The claim is no longer mine; ``record`` is what stands in its place."""

    record: Record | None


# --- asking again -------------------------------------------------------------------------------------------------

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0  # seconds between tries, doubled each time, jittered by half
CLAIM_PATIENCE = 2.0  # seconds of failing exchanges after which a claim gives up: the handler has not run, so may we


def persist(error: Exception, verb: Callable[[], Steps[T]], clock: Clock, until: Callable[[], float]) -> Steps[T]:
    """After ``verb()`` failed with ``error``: drive it again while it fails for a time and the clock is below ``until()``."""
    import random  # noqa: PLC0415 - only when something has failed

    pause = FIRST_PAUSE
    while getattr(error, "transient", False) and clock() + pause < until():
        yield Sleep(pause * (0.5 + random.random() / 2))  # noqa: S311 - jitter, not a secret
        pause = min(pause * 2, LONGEST_PAUSE)
        try:
            return (yield from verb())
        except Exception as again:  # noqa: BLE001 - asked again or raised below
            error = again
    raise error


def _belief(sent: float, reply: Reply, record: Record, margin: float) -> float:
    """Until when, on my clock, I hold the claim: counted from before the request, short of what the store grants."""
    return sent + (record.lease_until - reply.now) - margin


def _margin(store: Register, policy: Policy) -> float:
    # A hundredth for two clocks that run at different speeds, and the store's own imprecision.
    return policy.lease / 100 + store.resolution


# --- the steps ----------------------------------------------------------------------------------------------------


def claim(store: Register, bid: Bid) -> Steps[Won | Replay | Refused]:
    """Claim ``bid.key``, or find out why not. Waits for a busy key as long as the policy says."""
    policy, clock = bid.policy, bid.clock
    patience = clock() + policy.wait
    look_again = 0.001
    first = _first_write(bid)
    verb = _insert(store, first)
    while True:
        sent = clock()
        try:
            reply = yield from verb()
        except Exception as error:  # noqa: BLE001 - asked again, or raised there
            limit = sent + CLAIM_PATIENCE
            reply = yield from persist(error, verb, clock, lambda limit=limit: limit)  # type: ignore[misc]  # a default, not an argument
        held = reply.record
        if reply.won and held is not None:
            if held.status == PARKED:
                return Refused(Verdict.PARKED, held, 0.0)
            return Won(held, _belief(sent, reply, held, _margin(store, policy)))
        verdict = decide(held, reply.now, bid.owner, bid.fingerprint, policy)
        if held is None:
            verb = _insert(store, first)
        elif verdict is Verdict.WON:
            return (yield from _recover(store, bid, held, _belief(sent, reply, held, _margin(store, policy))))
        elif verdict is Verdict.REPLAY:
            return Replay(held, None if held.expires_at is None else held.expires_at - reply.now)
        elif verdict in {Verdict.START, Verdict.NEXT}:
            verb = _swap(store, _next_write(bid, held, fresh=verdict is Verdict.START), held)
        elif verdict is Verdict.PARK:
            verb = _swap(store, _change(held, status=PARKED, error=held.error or _lapsed(held), keep=None), held)
        elif verdict is Verdict.BUSY and clock() < patience:
            yield Sleep(min(look_again, patience - clock()))
            look_again = min(look_again * 2, store.poll)
            verb = lambda: store.load(bid.key)  # noqa: E731 - there is but one of these
        else:
            return Refused(verdict, held, max(0.0, held.lease_until - reply.now))


def heartbeat(
    store: Register, claims: Sequence[tuple[Record, float]], policy_of: Sequence[Policy], clock: Clock
) -> Steps[list[Won | Lost]]:
    """Renew claims, all in one exchange where the store can; ``claims`` are records with the seconds to renew for.

    A record that stands at a later beat of the same owner is a renewal whose reply was lost: it is renewed from there.
    """
    outcomes: dict[int, Won | Lost] = {}
    todo = {i: record for i, (record, _) in enumerate(claims)}
    while todo:
        pairs = [
            (_change(record, IN_PROGRESS, lease=claims[i][1], keep=policy_of[i].retention), record)
            for i, record in todo.items()
        ]
        sent = clock()
        replies = yield from store.swap_many(pairs)
        again: dict[int, Record] = {}
        for (i, before), reply in zip(todo.items(), replies, strict=True):
            held = reply.record
            if reply.won and held is not None:
                outcomes[i] = Won(held, _belief(sent, reply, held, _margin(store, policy_of[i])))
            elif held is not None and held.owner == before.owner and held.status == IN_PROGRESS:
                again[i] = held
            else:
                outcomes[i] = Lost(held)
        todo = again
    return [outcomes[i] for i in range(len(claims))]


class Outcome(NamedTuple):
    """How a claim ends: the status it leaves and what is recorded with it."""

    status: str
    result: str | None = None
    error: str | None = None


def completed(result: str | None, error: str | None = None) -> Outcome:
    """The handler is done; ``result`` is None when there is none to replay, and ``error`` then says why."""
    return Outcome(COMPLETED, result, error)


def failed(record: Record, policy: Policy, error: str) -> Outcome:
    """The handler raised: given back for a retry, or parked by ``on_error`` or because no attempt is left."""
    park = policy.on_error == "park" or (policy.max_attempts is not None and record.attempts >= policy.max_attempts)
    return Outcome(PARKED if park else RELEASED, None, error)


def released(error: str | None = None) -> Outcome:
    """Given back for a retry."""
    return Outcome(RELEASED, None, error)


def parked(error: str | None = None) -> Outcome:
    """Not to be tried again until an operator clears it."""
    return Outcome(PARKED, None, error)


def end(
    store: Register, record: Record, outcome: Outcome, policy: Policy, *, clock: Clock, until: Callable[[], float]
) -> Steps[Settled | Lost]:
    """End a claim with ``outcome``, conditioned on its owner; asks again while the claim lasts (``until``)."""
    keep = None if outcome.status == PARKED else policy.retention
    mine = record
    while True:
        write = _change(mine, outcome.status, result=outcome.result, error=outcome.error, keep=keep)
        try:
            reply = yield from store.swap(write, mine)
        except Exception as error:  # noqa: BLE001 - asked again, or raised there
            reply = yield from persist(error, _swap(store, write, mine), clock, until)
        held = reply.record
        if held is None or held.owner != record.owner:
            return Lost(held)
        if reply.won or held.status == outcome.status:
            return Settled(held)
        if held.status != IN_PROGRESS:
            return Lost(held)
        mine = held  # a heartbeat of mine came between, or its reply was lost


def end_many(
    store: Register, ends: Sequence[tuple[Record, Outcome, Policy]], clock: Clock, until: Callable[[], float]
) -> Steps[list[Settled | Lost]]:
    """End many claims, in one exchange where the store can; those that need more are ended one by one."""
    pairs = [
        (
            _change(
                record,
                outcome.status,
                result=outcome.result,
                error=outcome.error,
                keep=None if outcome.status == PARKED else policy.retention,
            ),
            record,
        )
        for record, outcome, policy in ends
    ]
    try:
        replies = yield from store.swap_many(pairs)
    except Exception as error:  # noqa: BLE001 - asked again, or raised there
        replies = yield from persist(error, lambda: store.swap_many(pairs), clock, until)
    outcomes: list[Settled | Lost] = []
    for (record, outcome, policy), reply in zip(ends, replies, strict=True):
        if reply.won and reply.record is not None:
            outcomes.append(Settled(reply.record))
        else:
            outcomes.append((yield from end(store, record, outcome, policy, clock=clock, until=until)))
    return outcomes


def abandon(store: Register, bid: Bid) -> Steps[None]:
    """Give back what a claim that was interrupted may have won; the handler has not run, so no attempt is counted.

    Claims once more with the same bid: that either meets its own record, or changes the one that the interrupted request
    was made for, so that this request, should it still be on its way, finds another version and does nothing.
    """
    outcome = yield from claim(store, bid._replace(policy=bid.policy._replace(on_busy="raise")))
    held = outcome.record if isinstance(outcome, Won) else None
    while held is not None and held.owner == bid.owner and held.status == IN_PROGRESS:
        back = _change(held, RELEASED, attempts=held.attempts - 1, error=held.error, keep=bid.policy.retention)
        reply = yield from store.swap(back, held)
        if reply.won:
            return
        held = reply.record


# --- for operators ------------------------------------------------------------------------------------------------


def unparked(record: Record) -> Write | None:
    """Return the write that lets a parked key run again with all its attempts, or None when it is not parked."""
    if record.status != PARKED:
        return None
    return _change(record, RELEASED, attempts=0, error=record.error, keep=Policy().retention)


def parked_by_hand(record: Record, reason: str) -> Write | None:
    """Return the write that parks a key; None when it is completed (final) or parked already."""
    if record.status in {COMPLETED, PARKED}:
        return None
    return _change(record, PARKED, error=reason, keep=None)


def is_live(record: Record, now: float) -> bool:
    """Tell whether a worker holds this key at the store's time ``now``."""
    return record.status == IN_PROGRESS and now < record.lease_until


STATUSES = frozenset({IN_PROGRESS, COMPLETED, RELEASED, PARKED})


def is_lapsed(record: Record, now: float) -> bool:
    """Tell whether this key was claimed by a worker that has vanished, at the store's time ``now``."""
    return record.status == IN_PROGRESS and now >= record.lease_until


# --- writes -------------------------------------------------------------------------------------------------------


def _first_write(bid: Bid) -> Write:
    lease, keep = bid.policy.lease, bid.policy.retention
    return Write(bid.key, IN_PROGRESS, bid.owner, 0, 0, 1, bid.fingerprint, None, None, None, lease, keep)


def _next_write(bid: Bid, held: Record, *, fresh: bool) -> Write:
    """Return the claim that follows ``held``; a ``fresh`` one counts its attempts anew, the fence grows in any case."""
    return _first_write(bid)._replace(
        fence=held.fence + 1,
        attempts=1 if fresh else held.attempts + 1,
        error=None if fresh else _lapsed(held) if held.status == IN_PROGRESS else held.error,
        created_at=held.created_at,
    )


def _change(
    record: Record,
    status: str,
    *,
    result: str | None = None,
    error: str | None = None,
    attempts: int | None = None,
    lease: float = 0.0,
    keep: float | None,
) -> Write:
    """Return the next version of a record: same owner, same fence, one beat on."""
    key, _, owner, fence, beat, _, held_attempts, fingerprint, _, held_error, created_at, _ = record
    return Write(
        key,
        status,
        owner,
        fence,
        beat + 1,
        held_attempts if attempts is None else attempts,
        fingerprint,
        result,
        held_error if error is None and status == IN_PROGRESS else error,
        created_at,
        lease,
        keep,
    )


def _lapsed(record: Record) -> str:
    return f"attempt {record.attempts} ended without a word: its lease lapsed"


def _insert(store: Register, write: Write) -> Callable[[], Steps[Reply]]:
    return lambda: store.insert(write)


def _swap(store: Register, write: Write, seen: Record) -> Callable[[], Steps[Reply]]:
    return lambda: store.swap(write, seen)


def _recover(store: Register, bid: Bid, held: Record, until: float) -> Steps[Won | Refused]:
    """Take up a claim whose reply was lost; renew it first, for part of its lease is gone."""
    if until - bid.clock() >= bid.policy.lease / 2:
        return Won(held, until)
    (outcome,) = yield from heartbeat(store, [(held, bid.policy.lease)], [bid.policy], bid.clock)
    if isinstance(outcome, Won):
        return outcome
    return Refused(Verdict.BUSY, outcome.record or held, 0.0)
