"""The protocol steps for many keys in one exchange.

The common case ends in that exchange. For the rest (a key to park, a lost race, a refused write), the single-key step in
``steps.py`` goes on. It recognises what the exchange has written.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from onceward.core.belief import belief
from onceward.core.clock import Clock
from onceward.core.drivers import Steps
from onceward.core.outbox_writes import noted, noting
from onceward.core.policy import Policy
from onceward.core.protocol import FREE, Outcome, Verdict, decide, last_write, may_send, unclaimed
from onceward.core.record import Record, Reply, Write
from onceward.core.register import Answered, KeyLocked, Register
from onceward.core.retries import CLAIM_PATIENCE, FIRST_PAUSE, LONGEST_PAUSE, jittered, patience
from onceward.core.steps import Bid, Lost, Refused, Replay, Settled, Won, claim, unclaim
from onceward.core.writes import first_claim, locked, next_claim
from onceward.errors import OncewardError, StoreError

Claimed = Won | Replay | Refused | Exception
Verb = Callable[[list[Any]], Steps[list[Answered]]]  # one exchange for several keys


def claim_many(store: Register, bids: Sequence[Bid]) -> Steps[list[Claimed]]:
    """Claim different keys under one clock, or find out why not. It does not wait for a busy key.

    Answers are in the order of the bids; a key that fails has its error there. Results kept elsewhere are not fetched.
    """
    if not bids:
        return []
    outcomes: dict[int, Claimed] = {}
    writes = [first_claim(bid.key, bid.owner, bid.fingerprint, bid.policy, bid.provenance) for bid in bids]
    others = yield from _claims(store, bids, store.insert_many, dict(enumerate(writes)), outcomes)
    pairs = {
        n: (next_claim(writes[n], held, fresh=verdict is Verdict.START), held)
        for n, (verdict, held) in others.items()
        if verdict in FREE
    }
    if pairs:
        yield from _claims(store, bids, store.swap_many, pairs, outcomes)
    for number, bid in enumerate(bids):
        if number not in outcomes:
            try:
                outcomes[number] = yield from claim(store, bid, value=False)
            except OncewardError as error:  # the other keys go on
                outcomes[number] = error
    return [outcomes[number] for number in range(len(bids))]


def _claims(
    store: Register,
    bids: Sequence[Bid],
    verb: Verb,
    writes: Mapping[int, Any],
    outcomes: dict[int, Claimed],
) -> Steps[dict[int, tuple[Verdict, Record]]]:
    """Ask together for the bids with these numbers. Each has a write, or a pair of a write and the record that it replaces.

    Note what is decided in ``outcomes``, and return what the other bids met.
    """
    clock = bids[0].clock
    # The keys that are won wait for those that are throttled, and must not lose their lease meanwhile.
    seconds = min(CLAIM_PATIENCE, bids[0].policy.lease / 4)
    try:
        asked = [bids[number] for number in writes]
        answers = yield from _answers(verb, list(writes.values()), clock, patience(clock, seconds), asked)
    except OncewardError as error:
        if getattr(error, "transient", False):
            outcomes.update(dict.fromkeys(writes, error))  # each alone would wait as long, and fail
        return {}
    others: dict[int, tuple[Verdict, Record]] = {}
    for (number, write), bid, (sent, reply) in zip(writes.items(), asked, answers, strict=True):
        if isinstance(reply, StoreError):
            outcomes[number] = reply
            continue
        held = reply.record
        if held is None:
            continue  # deleted meanwhile
        verdict = None if reply.won else decide(held, reply.now, bid.owner, bid.fingerprint, bid.policy)
        if verdict is None or verdict is Verdict.WON:
            until = belief(store, bid.policy, sent, reply, held, lease=bid.policy.lease)
            if until - clock() >= bid.policy.lease / 2:
                before = None if type(write) is Write else write[1]
                outcomes[number] = tuple.__new__(Won, (held, until, before))  # in half the time of Won(...)
        elif verdict is Verdict.REPLAY:
            is_due = held.due_at is not None and may_send(held, reply.now)
            outcomes[number] = Replay(held, None if held.expires_at is None else held.expires_at - reply.now, is_due)
        elif verdict in {Verdict.BUSY, Verdict.PARKED, Verdict.MISMATCH, Verdict.UNKNOWN}:
            outcomes[number] = Refused(verdict, held, max(0.0, held.lease_until - reply.now))
        else:
            others[number] = (verdict, held)
    return others


def end_many(
    store: Register, ends: Sequence[tuple[Record, Outcome, Policy]], clock: Clock, until: Callable[[], float]
) -> Steps[list[Settled | Lost | StoreError | None]]:
    """End claims in one exchange. None stands for a claim that you must end alone, with ``steps.end``.

    Transient errors are retried until ``until()``. A key that still fails then has its error in its place.

    Raises:
        OncewardError: the store's transient error, when every key has it until then.
    """
    # A claim that its handler has just ended must not open again: ``end`` judges it alone.
    pairs = {
        number: (write, record)
        for number, (record, outcome, policy) in enumerate(ends)
        if (write := last_write(record, outcome, policy)) is not None
    }
    if not pairs:
        return [None] * len(ends)
    try:
        answers = yield from _answers(store.swap_many, list(pairs.values()), clock, until)
    except OncewardError as error:
        if getattr(error, "transient", False):
            raise
        return [None] * len(ends)  # the store refuses one; ending each alone finds out which
    ended: list[Settled | Lost | StoreError | None] = [None] * len(ends)
    for number, (_, reply) in zip(pairs, answers, strict=True):
        if isinstance(reply, StoreError):
            ended[number] = reply if reply.transient else None
        elif reply.won and reply.record is not None:
            ended[number] = Settled(reply.record)
    return ended


def give_back(
    store: Register, claims: Sequence[tuple[Record, Policy]], clock: Clock, until: Callable[[], float]
) -> Steps[None]:
    """Give back claims whose handlers have not begun, and count no attempt. Claims that are lost stay as they are.

    Raises:
        OncewardError: the store's, after the others were given back. A claim not given back stays until its lease ends.
    """
    pairs = [(unclaimed(record, policy), record) for record, policy in claims]
    answers = yield from _answers(store.swap_many, pairs, clock, until)
    trouble: OncewardError | None = None
    for (record, policy), (_, reply) in zip(claims, answers, strict=True):
        try:
            if isinstance(reply, StoreError):
                raise reply
            if not reply.won and reply.record != record:
                yield from unclaim(store, reply.record, record, policy, clock, until)
        except OncewardError as error:  # the others go on
            trouble = error
    if trouble is not None:
        raise trouble


class UnsentNote(NamedTuple):
    """What to write about the messages of a record: see ``outbox_writes.noting``."""

    record: Record
    unsent: str | None
    due: float | None
    keep: float | None


def note_many(
    store: Register, notes: Sequence[UnsentNote], clock: Clock, until: Callable[[], float]
) -> Steps[list[Won | Lost | StoreError]]:
    """Write what is left to send of records that are still the ones seen, in one exchange if the store can.

    A send lease is such a write, too: of the same messages, with the id of who sends. Then ``Won.until`` is how long it is
    believed in, on the owner's clock.

    Raises:
        OncewardError: the store's, when every key has it until then.
    """
    pairs = [(noting(*note), note.record) for note in notes]
    answers = yield from _answers(store.swap_many, pairs, clock, until)
    return [
        reply if isinstance(reply, StoreError) else noted(store, record, unsent, due, sent, reply)
        for (record, unsent, due, _), (sent, reply) in zip(notes, answers, strict=True)
    ]


def _answers(
    verb: Verb, writes: list[Any], clock: Clock, until: Callable[[], float], bids: Sequence[Bid] = ()
) -> Steps[list[tuple[float, Answered]]]:
    """Return the time of each write's request, and the write's answer. Retry transient errors until ``until()``.

    For ``bids``, a key that somebody's open transaction holds at the first try is a busy one. Later, what holds it can be the
    claim's own first write, which is still on its way. Raises the OncewardError of a request if no key has an answer yet.
    """
    answers: dict[int, tuple[float, Answered]] = {}
    todo, pause = list(range(len(writes))), FIRST_PAUSE
    while True:
        sent = clock()
        failure: OncewardError | None = None
        try:
            replies = yield from verb([writes[number] for number in todo])
        except OncewardError as error:
            failure = error
            replies = [error if isinstance(error, StoreError) else StoreError(str(error))] * len(todo)
        if failure is None or answers:
            for number, reply in zip(todo, replies, strict=True):
                busy = bids and isinstance(reply, KeyLocked)
                answers[number] = sent, _as_busy(bids[number]) if busy else reply
            todo = [n for n in todo if isinstance(reply := answers[n][1], StoreError) and reply.transient]
            if not todo or clock() + pause >= until():
                return [answers[number] for number in range(len(writes))]
        elif not getattr(failure, "transient", False) or clock() + pause >= until():
            raise failure
        bids = ()
        yield jittered(pause)
        pause = min(pause * 2, LONGEST_PAUSE)


def _as_busy(bid: Bid) -> Reply:
    return locked(first_claim(bid.key, bid.owner, None, bid.policy))


def abandon_many(store: Register, bids: Sequence[Bid]) -> Steps[None]:
    """Give back what an interrupted ``claim_many`` may have won, as ``steps.abandon`` does for one key."""
    claimed = yield from claim_many(store, bids)
    won = [(one.record, bid.policy) for one, bid in zip(claimed, bids, strict=True) if isinstance(one, Won)]
    if won:
        clock = bids[0].clock
        yield from give_back(store, won, clock, patience(clock))
