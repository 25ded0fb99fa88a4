"""The steps of the protocol: generators that yield a store's requests and are sent the replies.

Drive them with ``core.drive``, or by hand::

    steps = claim(store, bid)
    request = next(steps)
    outcome = steps.send(store.exchange(request))   # StopIteration carries the outcome

Throw in the error of an exchange that fails. If its attribute ``transient`` is true, the step asks again. The record's
version then tells whether the first write was made. No step reads a status: ``protocol.py`` decides.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, overload

from onceward.core.belief import belief
from onceward.core.clock import Clock, boottime
from onceward.core.drivers import Steps
from onceward.core.policy import Policy
from onceward.core.protocol import (
    FREE,
    Ending,
    Outcome,
    Verdict,
    decide,
    given_up,
    is_mine,
    judge,
    last_write,
    may_send,
    unclaimed,
)
from onceward.core.record import Elsewhere, Record, RepeatedWrite, Reply, Write
from onceward.core.register import KeyLocked, Register
from onceward.core.retries import CLAIM_PATIENCE, patience, retry_transient
from onceward.core.writes import UNKNOWN, Provenance, ended, first_claim, locked, next_claim, renewal
from onceward.errors import StoreError

if TYPE_CHECKING:
    from onceward.core.waiting import Watch


class Bid(NamedTuple):
    """What a worker asks for: a key under a policy, as a unique owner."""

    key: str
    owner: str
    fingerprint: str | None
    policy: Policy
    clock: Clock = boottime
    provenance: Provenance = UNKNOWN


class Won(NamedTuple):
    """The claim is mine until ``until`` on my own clock (seconds), which is earlier than its end in the store.

    ``before`` is the record that the claim replaced, if any. ``goes_on``: whether it met its own record: of an earlier
    run of this owner, or of a request whose reply was lost.
    """

    record: Record
    until: float
    before: Record | None = None
    goes_on: bool = False


class Replay(NamedTuple):
    """The key is completed. Its record stays for ``remaining`` seconds; None is for ever.

    ``is_due`` tells whether it has messages that anybody can send now.
    """

    record: Record
    remaining: float | None
    is_due: bool = False


class Refused(NamedTuple):
    """The key cannot be claimed: BUSY, PARKED, MISMATCH, UNKNOWN or USED. Ask again after ``wait`` seconds.

    ``parked`` tells whether this claim itself parked it.
    """

    verdict: Verdict
    record: Record
    wait: float
    parked: bool = False


class Settled(NamedTuple):
    """The record as the final write left it."""

    record: Record


class Lost(NamedTuple):
    """The claim is no longer mine; ``record`` is the current one."""

    record: Record | None


# A conditional write with its effect: both are made, or neither.
Commit = Callable[[Write, Record | None], Steps[Reply]]


class Effect(NamedTuple):
    """The outcome to record at the end of a claim, and the write that commits it with the effect."""

    outcome: Outcome
    commit: Commit


@overload
def claim(
    store: Register, bid: Bid, effect: None = None, *, value: bool = True, single_use: bool = False
) -> Steps[Won | Replay | Refused]: ...


@overload
def claim(store: Register, bid: Bid, effect: Effect, *, value: bool = True) -> Steps[Settled | Replay | Refused]: ...


def claim(
    store: Register, bid: Bid, effect: Effect | None = None, *, value: bool = True, single_use: bool = False
) -> Steps[Won | Replay | Refused | Settled]:
    """Claim ``bid.key``, or find out why not. Waits for a busy key as long as the policy says.

    With an ``effect``, the claim, the effect and the completion are one write, and Settled means that it was made.
    Without ``value``, a recorded result that is kept elsewhere is not fetched. With ``single_use``, a client made the owner
    id: a claim that it won by an earlier request is honoured while its lease is live, and is not renewed.
    """
    key, owner, fingerprint, policy, clock, provenance = bid[:]
    first = first_claim(key, owner, fingerprint, policy, provenance)
    first = RepeatedWrite._make(first) if single_use else first
    verb = partial(store.insert, first) if effect is None else _claiming(store, first, None, effect, policy)
    parking = False
    seen: Record | None = None
    shared: Watch | None = None  # with the other waiters of this process
    sent = began = clock()
    while True:
        try:
            reply = yield from verb()
        except Exception as error:
            reply = yield from _insist(error, verb, first, clock)
        held = reply.record
        if effect is not None and held is not None and judge(held, owner, effect.outcome.status) is Ending.DONE:
            return Settled(_with_result(held, effect.outcome))  # made now, or earlier with a lost reply
        verdict = (
            None
            if reply.won and not parking
            else decide(held, reply.now, owner, fingerprint, policy, single_use=single_use)
        )
        parked, parking = parking and reply.won, False
        if held is None:
            seen = None
            verb = _claiming(store, first, None, effect, policy)
        elif verdict is None or verdict is Verdict.WON:
            lease = policy.lease
            until = belief(store, policy, sent, reply, held, lease)
            in_time = until - clock() >= lease / 2 or (single_use and verdict is Verdict.WON)
            # What Won(...) does, in half the time.
            won = tuple.__new__(Won, (held, until, seen, verdict is Verdict.WON))
            return won if in_time else (yield from renewed(store, bid, won))
        elif verdict is Verdict.REPLAY:
            held = (yield from fetch_result(held, clock)) if value and type(held.result) is Elsewhere else held
            is_due = held.due_at is not None and may_send(held, reply.now)
            return Replay(held, None if held.expires_at is None else held.expires_at - reply.now, is_due)
        elif verdict in FREE:
            if held == seen:  # retries would never end, and cost money
                raise RuntimeError(f"{key}: the store refuses to change a record although it is the one seen")
            seen = held
            following = next_claim(first, held, fresh=verdict is Verdict.START)
            verb = _claiming(store, following, held, effect, policy)
        elif verdict is Verdict.PARK:
            parking = True
            verb = partial(store.swap, given_up(held), held)
        elif verdict is Verdict.BUSY and (remaining := began + policy.wait - clock()) > 0:
            if shared is None:
                from onceward.core.waiting import watch

                shared = watch(store, key, clock)
            verb = partial(shared.look, owner, clock(), clock() + remaining, reply)
        else:
            return Refused(verdict, held, max(0.0, held.lease_until - reply.now), parked)
        sent = clock()


def _insist(error: Exception, verb: Callable[[], Steps[Reply]], first: Write, clock: Clock) -> Steps[Reply]:
    """Return the reply to a claim's verb after ``error``, asked again. A key that a transaction holds is a busy one."""
    if isinstance(error, KeyLocked):
        return locked(first)
    # After another error, what holds the key can be the claim's own first write, which is still on its way.
    limit = clock() + CLAIM_PATIENCE
    return (yield from retry_transient(verb, clock, lambda: limit, error))


def fetch_result(record: Record, clock: Clock) -> Steps[Record]:
    """Return a record with its result, fetched if it is kept elsewhere.

    Raises:
        ResultUnavailable: the result is gone, or another one is in its place.
        StoreError: the result could not be fetched.
    """
    result = record.result
    if type(result) is not Elsewhere:
        return record
    return record._replace(result=(yield from retry_transient(result.fetch, clock, patience(clock))))


def heartbeat(
    store: Register, claims: Sequence[tuple[Record, float]], policy_of: Sequence[Policy], clock: Clock, leap: int = 0
) -> Steps[list[Won | Lost]]:
    """Like :func:`renewals`, but raises the error of a claim that could not be renewed."""
    renewed = yield from renewals(store, claims, policy_of, clock, leap)
    for one in renewed:
        if isinstance(one, StoreError):
            raise one
    return [one for one in renewed if not isinstance(one, StoreError)]


def renewals(
    store: Register, claims: Sequence[tuple[Record, float]], policy_of: Sequence[Policy], clock: Clock, leap: int = 0
) -> Steps[list[Won | Lost | StoreError]]:
    """Renew claims, in one exchange if the store can; ``claims`` are records with the seconds to renew for.

    The beat grows by one, and by ``leap``.

    A renewal never shortens a lease. If a record has a later beat of the same owner, the reply to a renewal was lost: it is
    renewed from there. A claim that could not be renewed has its error in its place.
    """
    # A claim that has ended meanwhile must not open again: its version is still current.
    todo = {i: record for i, (record, _) in enumerate(claims) if is_mine(record, record)}
    outcomes: dict[int, Won | Lost | StoreError] = {
        i: Lost(record) for i, (record, _) in enumerate(claims) if i not in todo
    }
    while todo:
        pairs = [(renewal(record, claims[i][1], policy_of[i], leap), record) for i, record in todo.items()]
        sent = clock()
        replies = yield from store.swap_many(pairs)
        again: dict[int, Record] = {}
        for (i, before), reply in zip(todo.items(), replies, strict=True):
            if isinstance(reply, StoreError):
                outcomes[i] = reply
                continue
            held = reply.record
            if reply.won and held is not None:
                outcomes[i] = Won(held, belief(store, policy_of[i], sent, reply, held, lease=claims[i][1]))
            elif held is not None and is_mine(held, before):
                again[i] = held
            else:
                outcomes[i] = Lost(held)
        todo = again
    return [outcomes[i] for i in range(len(claims))]


# --- settling ------------------------------------------------------------------------------------------------------


def end(
    store: Register,
    record: Record,
    outcome: Outcome,
    policy: Policy,
    clock: Clock,
    until: Callable[[], float],
    commit: Commit | None = None,
    alone: bool = True,
) -> Steps[Settled | Lost]:
    """End a claim with ``outcome``, if its owner still holds it. Retries until ``until()``. ``commit`` also makes an effect.

    If not ``alone``, another request of the owner can end it with another result meanwhile. A result that is kept elsewhere is then
    not known to be this one.
    """
    mine = record
    while True:
        write = last_write(mine, outcome, policy)
        if write is None:  # another thread has ended it
            done = judge(mine, record.owner, outcome.status, record.fence) is Ending.DONE
            return Settled(mine) if done else Lost(mine)
        verb = store.swap if commit is None else commit
        try:
            reply = yield from verb(write, mine)
        except Exception as error:
            reply = yield from retry_transient(partial(verb, write, mine), clock, until, error)
        held = reply.record
        if reply.won and held is not None:
            return tuple.__new__(Settled, (held,))  # as above
        ending = judge(held, record.owner, outcome.status, record.fence)
        if held is None or ending is Ending.LOST:
            return Lost(held)
        if ending is Ending.DONE:
            return Settled(_with_result(held, outcome) if alone else held)
        mine = held


def _with_result(held: Record, outcome: Outcome) -> Record:
    """Return my record with the result that I wrote, wherever the store keeps it."""
    return held._replace(result=outcome.result) if type(held.result) is Elsewhere else held


def abandon(store: Register, bid: Bid) -> Steps[None]:
    """Give back what an interrupted claim may have won. The handler has not run, so no attempt is counted.

    It claims again with the same bid. Either it meets its own record, or it changes the record that the interrupted request
    would change. If that request still arrives, it meets another version, or a record, and does nothing. There is one exception: if
    another worker holds the key, and its record is deleted before an insert arrives, that insert claims the key. Then the key
    stays claimed to the lease's end, as after a crash.
    """
    until = patience(bid.clock)
    outcome = yield from claim(store, bid._replace(policy=bid.policy._replace(on_busy="raise")), value=False)
    if isinstance(outcome, Won):
        yield from unclaim(store, outcome.record, outcome.record, bid.policy, bid.clock, until)


def unclaim(
    store: Register, held: Record | None, mine: Record, policy: Policy, clock: Clock, until: Callable[[], float]
) -> Steps[None]:
    """Give back the claim that has seen the version ``mine``, if it still stands; ``held`` is the current record."""
    while held is not None and is_mine(held, mine):
        reply = yield from retry_transient(partial(store.swap, unclaimed(held, policy), held), clock, until)
        if (
            reply.won or reply.record == held
        ):  # a store that refuses to change an unchanged record would refuse for ever
            return
        held = reply.record  # a heartbeat of mine came between


def _claiming(
    store: Register, write: Write, seen: Record | None, effect: Effect | None, policy: Policy
) -> Callable[[], Steps[Reply]]:
    if effect is not None:
        return partial(effect.commit, ended(write, *effect.outcome[:3])._replace(keep=policy.retention), seen)
    return partial(store.insert, write) if seen is None else partial(store.swap, write, seen)


def renewed(store: Register, bid: Bid, won: Won) -> Steps[Won | Refused]:
    """Renew a claim that I won, because half of its lease was over when I learned of it."""
    (outcome,) = yield from heartbeat(store, [(won.record, bid.policy.lease)], [bid.policy], bid.clock)
    if isinstance(outcome, Won):
        return won._replace(record=outcome.record, until=outcome.until)
    return Refused(Verdict.BUSY, outcome.record or won.record, 0.0)
