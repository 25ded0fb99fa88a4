"""Claims a key again that its worker or its client left half done. See ``steps.py`` for the form of the generator.

It changes the record that was seen, or nothing. A key that was cleared, completed or taken over meanwhile is left alone.
"""

from functools import partial

from onceward.core.belief import belief
from onceward.core.drivers import Steps
from onceward.core.protocol import Verdict, decide, given_up
from onceward.core.record import Reply
from onceward.core.register import KeyLocked, Register
from onceward.core.retries import patience, retry_transient
from onceward.core.steps import Bid, Refused, Replay, Won, claim, renewed
from onceward.core.writes import first_claim, next_claim
from onceward.errors import OncewardError


class NotFree(OncewardError):
    """The key is not free any more: another worker has it, or it was completed, parked or cleared. Nothing was changed."""


def resume(seen: Reply, store: Register, bid: Bid) -> Steps[Won | Refused]:
    """Claim the record in ``seen`` for the call that it keeps, or park it if the policy says so.

    Args:
        seen: the store's answer to a load.
        store: the ledger.
        bid: its fingerprint is not compared, but the record's is kept.

    Returns:
        The claim; or PARKED, if this has parked the key.

    Raises:
        NotFree: the record cannot be claimed, or has changed.
    """
    held, clock = seen.record, bid.clock
    if held is None:
        raise NotFree(f"{bid.key}: it was cleared")
    verdict = decide(held, seen.now, bid.owner, None, bid.policy)
    if verdict is Verdict.NEXT:
        provenance = bid.provenance._replace(input=held.input)
        first = first_claim(bid.key, bid.owner, held.fingerprint, bid.policy, provenance)
        write = next_claim(first, held, fresh=False)
    elif verdict is Verdict.PARK:
        write = given_up(held)
    else:
        raise NotFree(f"{bid.key}: {verdict.value}")
    sent = clock()
    try:
        reply = yield from retry_transient(partial(store.swap, write, held), clock, patience(clock))
    except KeyLocked as error:
        raise NotFree(f"{bid.key}: an open transaction holds it") from error
    now = reply.record
    if now is None:
        raise NotFree(f"{bid.key}: it was cleared")
    came = decide(now, reply.now, bid.owner, None, bid.policy)
    if came is Verdict.PARKED and verdict is Verdict.PARK:
        return Refused(came, now, 0.0, reply.won)
    if came is not Verdict.WON:
        raise NotFree(f"{bid.key}: {came.value}")
    until = belief(store, bid.policy, sent, reply, now, lease=bid.policy.lease)
    won = Won(now, until, held)
    return won if until - clock() >= bid.policy.lease / 2 else (yield from renewed(store, bid, won))


def go_on(store: Register, bid: Bid) -> Steps[Won | Replay | Refused]:
    """Claim as :func:`claim`, for an owner that has one run after the other. A run that goes on gets a larger fence.

    The run before can still be alive after it was given up: now it cannot end this one's claim.
    """
    while True:
        outcome = yield from claim(store, bid)
        if not isinstance(outcome, Won) or not outcome.goes_on:
            return outcome
        held, clock = outcome.record, bid.clock
        first = first_claim(bid.key, bid.owner, held.fingerprint, bid.policy, bid.provenance)
        write = next_claim(first, held, fresh=False)
        write = write._replace(attempts=held.attempts, error=held.error, history=held.history)
        sent = clock()
        reply = yield from retry_transient(partial(store.swap, write, held), clock, patience(clock))
        if reply.won and reply.record is not None:
            until = belief(store, bid.policy, sent, reply, reply.record, lease=bid.policy.lease)
            return outcome._replace(record=reply.record, until=until)


def leave(_store: Register, _bid: Bid) -> Steps[None]:
    """Leave what an interrupted claim may have won to its lease's end: then it is half done again."""
    yield from ()
