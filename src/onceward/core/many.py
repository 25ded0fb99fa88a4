"""The steps of the protocol for many keys at once: what one exchange settles, it settles for all; the rest goes alone.

Written as ``steps.py``, and on top of it: what takes more than the common case (a key to park, a lost race, a store that
refuses one of the writes) is done by the step for one key, which recognises what this one has written.
"""

from collections.abc import Callable, Sequence
from functools import partial

from onceward.core.clock import Clock
from onceward.core.drive import Steps
from onceward.core.policy import Policy
from onceward.core.protocol import Outcome, Verdict, decide, is_mine, last_write, unclaimed
from onceward.core.record import Record, Reply
from onceward.core.register import Register
from onceward.core.steps import (
    CLAIM_PATIENCE,
    FIRST_PAUSE,
    Bid,
    Lost,
    Refused,
    Replay,
    Settled,
    Won,
    belief,
    claim,
    persist,
)
from onceward.core.writes import first_claim, next_claim
from onceward.errors import OncewardError

Claimed = Won | Replay | Refused | Exception


def claim_many(store: Register, bids: Sequence[Bid]) -> Steps[list[Claimed]]:
    """Claim different keys under one clock, or find out why not; nobody waits for a busy one.

    The answers are in the order of the bids; the error of a key that could not be asked for stands in its place.
    """
    outcomes: dict[int, Claimed] = {}
    writes = [first_claim(bid.key, bid.owner, bid.fingerprint, bid.policy) for bid in bids]
    met = yield from _claims(store, bids, list(range(len(bids))), partial(store.insert_many, writes), outcomes)
    changes = {
        number: (next_claim(writes[number], held, fresh=verdict is Verdict.START), held)
        for number, (verdict, held) in met.items()
        if verdict in {Verdict.START, Verdict.NEXT}
    }
    if changes:
        yield from _claims(store, bids, list(changes), partial(store.swap_many, list(changes.values())), outcomes)
    for number, bid in enumerate(bids):
        if number not in outcomes:
            try:
                outcomes[number] = yield from claim(store, bid)
            except OncewardError as error:  # the other keys go on
                outcomes[number] = error
    return [outcomes[number] for number in range(len(bids))]


def _claims(
    store: Register,
    bids: Sequence[Bid],
    asked: Sequence[int],
    verb: Callable[[], Steps[list[Reply]]],
    outcomes: dict[int, Claimed],
) -> Steps[dict[int, tuple[Verdict, Record]]]:
    """Make one exchange for the bids ``asked``: note what it decides, and return what those that it does not have met."""
    clock = bids[0].clock
    sent = clock()
    try:
        replies = yield from verb()
    except Exception as error:  # noqa: BLE001 - asked again, or noted
        limit = max(sent + CLAIM_PATIENCE, clock() + 2 * FIRST_PAUSE)
        try:
            replies = yield from persist(error, verb, clock, lambda: limit)
        except OncewardError as lasting:  # it is in the place of their answers
            if getattr(lasting, "transient", False):
                outcomes.update(dict.fromkeys(asked, lasting))  # each alone would wait as long, and in vain
            return {}
    met: dict[int, tuple[Verdict, Record]] = {}
    for number, reply in zip(asked, replies, strict=True):
        bid, held = bids[number], reply.record
        if held is None:
            continue  # it was deleted in between
        verdict = Verdict.WON if reply.won else decide(held, reply.now, bid.owner, bid.fingerprint, bid.policy)
        if verdict is Verdict.WON:
            until = belief(store, bid.policy, sent, reply, held)
            if until - clock() >= bid.policy.lease / 2:
                outcomes[number] = Won(held, until)
        elif verdict is Verdict.REPLAY:
            outcomes[number] = Replay(held, None if held.expires_at is None else held.expires_at - reply.now)
        elif verdict in {Verdict.BUSY, Verdict.PARKED, Verdict.MISMATCH, Verdict.UNKNOWN}:
            outcomes[number] = Refused(verdict, held, max(0.0, held.lease_until - reply.now))
        else:
            met[number] = (verdict, held)
    return met


def end_many(
    store: Register, ends: Sequence[tuple[Record, Outcome, Policy]], clock: Clock, until: Callable[[], float]
) -> Steps[list[Settled | Lost | None]]:
    """End claims in one exchange; None for one that this has not settled, and that ``steps.end`` is to end alone.

    Raises:
        Exception: the store's, a transient one that lasted until ``until()``.
    """
    pairs = [(last_write(record, outcome, policy), record) for record, outcome, policy in ends]
    verb = partial(store.swap_many, pairs)
    try:
        replies = yield from verb()
    except Exception as error:  # noqa: BLE001 - asked again, or raised there
        try:
            replies = yield from persist(error, verb, clock, until)
        except OncewardError as lasting:
            if getattr(lasting, "transient", False):
                raise
            return [None] * len(ends)  # the store refuses one of them: each alone finds out which
    return [Settled(reply.record) if reply.won and reply.record is not None else None for reply in replies]


def give_back(
    store: Register, claims: Sequence[tuple[Record, Policy]], clock: Clock, until: Callable[[], float]
) -> Steps[None]:
    """Give back claims whose handlers have not begun; no attempt is counted. Those that are lost by now stay as they are.

    Raises:
        Exception: the store's; what was not given back stays claimed to the end of its lease.
    """
    todo = list(claims)
    while todo:
        pairs = [(unclaimed(record, policy), record) for record, policy in todo]
        verb = partial(store.swap_many, pairs)
        try:
            replies = yield from verb()
        except Exception as error:  # noqa: BLE001 - asked again, or raised there
            replies = yield from persist(error, verb, clock, until)
        todo = [
            (reply.record, policy)  # a heartbeat of mine came in between
            for (record, policy), reply in zip(todo, replies, strict=True)
            # what stands as it was seen, the store refuses to change: asking on would never end
            if not reply.won and reply.record not in {None, record} and is_mine(reply.record, record.owner)
        ]


def abandon_many(store: Register, bids: Sequence[Bid]) -> Steps[None]:
    """Give back what ``claim_many`` may have won before it was interrupted, as ``steps.abandon`` does for one key."""
    clock = bids[0].clock
    claimed = yield from claim_many(store, bids)
    won = [(one.record, bid.policy) for one, bid in zip(claimed, bids, strict=True) if isinstance(one, Won)]
    limit = clock() + CLAIM_PATIENCE
    yield from give_back(store, won, clock, lambda: limit)
