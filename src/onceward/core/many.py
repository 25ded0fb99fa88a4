"""The protocol steps for many keys in one exchange.

The common case ends in that exchange. For the rest (a key to park, a lost race, a refused write), the single-key step in
``steps.py`` goes on. It recognises what the exchange has written.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from onceward.core.belief import belief
from onceward.core.clock import Clock
from onceward.core.drivers import Steps
from onceward.core.outbox_writes import noted, noting
from onceward.core.policy import Policy
from onceward.core.protocol import FREE, Outcome, Verdict, decide, last_write, may_send, unclaimed
from onceward.core.record import Record, Reply
from onceward.core.register import Answered, KeyLocked, Register
from onceward.core.retries import CLAIM_PATIENCE, FIRST_PAUSE, LONGEST_PAUSE, jittered, patience
from onceward.core.steps import Bid, Lost, Refused, Replay, Settled, Won, claim, unclaim
from onceward.core.writes import first_claim, locked, next_claim
from onceward.errors import OncewardError, StoreError

_NOTHING: Final[Mapping[int, Record]] = {}
Claimed = Won | Replay | Refused | Exception
Verb = Callable[[Sequence[int]], Steps[list[Answered]]]  # one exchange for the keys with these numbers


def claim_many(store: Register, bids: Sequence[Bid]) -> Steps[list[Claimed]]:
    """Claim different keys under one clock, or find out why not. It does not wait for a busy key.

    Answers are in the order of the bids; a key that fails has its error there. Results kept elsewhere are not fetched.
    """
    if not bids:
        return []
    outcomes: dict[int, Claimed] = {}
    writes = [first_claim(bid.key, bid.owner, bid.fingerprint, bid.policy, bid.provenance) for bid in bids]
    verb: Verb = lambda numbers: store.insert_many([writes[number] for number in numbers])
    others = yield from _claims(store, bids, range(len(bids)), verb, outcomes)
    if len(outcomes) < len(bids) and (free := {n: other for n, other in others.items() if other[0] in FREE}):
        pairs = {
            n: (next_claim(writes[n], held, fresh=verdict is Verdict.START), held)
            for n, (verdict, held) in free.items()
        }
        verb = lambda numbers: store.swap_many([pairs[number] for number in numbers])
        yield from _claims(store, bids, list(free), verb, outcomes, {n: held for n, (_, held) in free.items()})
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
    numbers: Sequence[int],
    verb: Verb,
    outcomes: dict[int, Claimed],
    seen: Mapping[int, Record] = _NOTHING,
) -> Steps[dict[int, tuple[Verdict, Record]]]:
    """Ask for the bids at ``numbers`` together, which replace the records ``seen``.

    Note what is decided in ``outcomes``, and return what the other bids met.
    """
    clock = bids[0].clock
    # The keys that are won wait for those that are throttled, and must not lose their lease meanwhile.
    seconds = min(CLAIM_PATIENCE, bids[0].policy.lease / 4)
    try:
        answers = yield from _answers(verb, numbers, clock, patience(clock, seconds), bids)
    except OncewardError as error:
        if getattr(error, "transient", False):
            outcomes.update(dict.fromkeys(numbers, error))  # each alone would wait as long, and fail
        return {}
    others: dict[int, tuple[Verdict, Record]] = {}
    for number, (sent, reply) in answers.items():
        bid = bids[number]
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
                outcomes[number] = tuple.__new__(Won, (held, until, seen.get(number)))  # in half the time of Won(...)
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
    verb: Verb = lambda asked: store.swap_many([pairs[number] for number in asked])
    try:
        answers = yield from _answers(verb, list(pairs), clock, until)
    except OncewardError as error:
        if getattr(error, "transient", False):
            raise
        return [None] * len(ends)  # the store refuses one; ending each alone finds out which
    ended: list[Settled | Lost | StoreError | None] = [None] * len(ends)
    for number, (_, reply) in answers.items():
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
    verb: Verb = lambda asked: store.swap_many([pairs[number] for number in asked])
    answers = yield from _answers(verb, range(len(pairs)), clock, until)
    trouble: OncewardError | None = None
    for number, (_, reply) in answers.items():
        record, policy = claims[number]
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
    verb: Verb = lambda asked: store.swap_many([pairs[number] for number in asked])
    answers = yield from _answers(verb, range(len(pairs)), clock, until)
    outcomes: list[Won | Lost | StoreError] = []
    for number, (record, unsent, due, _) in enumerate(notes):
        sent, reply = answers[number]
        outcomes.append(reply if isinstance(reply, StoreError) else noted(store, record, unsent, due, sent, reply))
    return outcomes


def _answers(
    verb: Verb, numbers: Sequence[int], clock: Clock, until: Callable[[], float], bids: Sequence[Bid] = ()
) -> Steps[dict[int, tuple[float, Answered]]]:
    """Return the time of each key's request, and the key's answer. Retry transient errors until ``until()``.

    For ``bids``, a key that somebody's open transaction holds at the first try is a busy one. Later, what holds it can be the
    claim's own first write, which is still on its way. Raises the OncewardError of a request if no key has an answer yet.
    """
    answers: dict[int, tuple[float, Answered]] = {}
    todo, pause = list(numbers), FIRST_PAUSE
    while True:
        sent = clock()
        failure: OncewardError | None = None
        try:
            replies = yield from verb(todo)
        except OncewardError as error:
            failure = error
            replies = [error if isinstance(error, StoreError) else StoreError(str(error))] * len(todo)
        if failure is None or answers:
            for number, reply in zip(todo, replies, strict=True):
                busy = bids and isinstance(reply, KeyLocked)
                answers[number] = sent, _as_busy(bids[number]) if busy else reply
            todo = [n for n in todo if isinstance(reply := answers[n][1], StoreError) and reply.transient]
            if not todo or clock() + pause >= until():
                return answers
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
