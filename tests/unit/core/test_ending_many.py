"""Many claims in one exchange, keys that a transaction holds, and how long an end is tried: a lease, and one more without the result."""

import asyncio

import pytest

from faults.injected import Faults, at, fail_before, settling, when
from onceward import (
    Busy,
    Once,
    OncewardError,
    ResultNotRecorded,
    ResultUnavailable,
    StepNotRecorded,
    StoreError,
    current,
)
from onceward.core import many, retries, steps
from onceward.core.clock import boottime
from onceward.core.drivers import drive
from onceward.core.policy import Policy
from onceward.core.protocol import completed, released
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED
from onceward.core.register import KeyLocked
from onceward.core.steps import Bid, Refused
from onceward.stores.contract import OneByOne
from onceward.stores.memory import MemoryStore
from onceward.testing.clock import ManualClock
from queues.batches import called
from tables import each
from waiting import within


def test_a_claim_that_has_ended_is_not_ended_again_with_others():
    clock = ManualClock()
    store = MemoryStore(clock)
    records = [drive(steps.claim(store, steps.Bid(key, key, None, Policy(), clock)), store).record for key in "ab"]
    over = drive(steps.end(store, records[0], completed("1"), Policy(), clock=clock, until=clock), store).record
    ends = [(over, released("boom"), Policy()), (records[1], completed("2"), Policy())]
    answers = drive(many.end_many(store, ends, clock, clock), store)
    assert answers[0] is None
    assert answers[1].record.result == "2"
    assert store.records["a"] == over
    assert drive(many.end_many(store, ends[:1], clock, clock), store) == [None]


class SlowReplies(MemoryStore):
    """A store whose replies are on their way for five seconds."""

    def insert_many(self, writes):
        replies = yield from super().insert_many(writes)
        self.clock.advance(5.0)
        return replies


def test_claims_of_a_batch_count_their_leases_from_before_the_request():
    clock = ManualClock()
    store = SlowReplies(clock)
    store.clock, sent = clock, clock()
    bids = [steps.Bid(key, "a", None, Policy(lease=60.0), clock) for key in ("one", "two")]
    assert all(won.until <= sent + 60.0 for won in drive(many.claim_many(store, bids), store))


def test_a_heartbeat_of_a_key_that_another_has_taken_over_is_refused_at_once():
    clock = ManualClock()
    store, policy = Faults(MemoryStore(clock), lambda ask: None), Policy(lease=60.0)
    mine = drive(steps.claim(store, steps.Bid("k", "mine", None, policy, clock)), store).record
    clock.advance(61.0)
    other = drive(steps.claim(store, steps.Bid("k", "other", None, policy, clock)), store).record
    assert drive(steps.renewals(store, [(mine, 60.0)], [policy], clock), store) == [steps.Lost(other)]
    assert store.store.records["k"] == other
    assert [ask.verb for ask in store.asked].count("swap_many") == 1, "a refused heartbeat is not sent again and again"


def test_a_locked_key_is_busy_and_its_handler_does_not_run():
    once = Once(Faults(MemoryStore(), lambda ask: fail_before(KeyLocked)), name="n")
    with pytest.raises(Busy):
        once.run("k", pytest.fail)


def test_a_locked_key_after_a_lost_reply_is_a_failure_of_the_ledger():
    lost = {1: fail_before(lambda text: StoreError(text, transient=True))}
    first = at(lost)
    store = Faults(MemoryStore(), lambda ask: first(ask) or fail_before(KeyLocked))
    with pytest.raises(StoreError) as raised:
        Once(store, name="n").run("k", pytest.fail)
    assert not isinstance(raised.value, Busy)
    assert isinstance(raised.value, KeyLocked)


class Refusing(MemoryStore):
    """A store that takes no batch."""

    asked = 0

    def insert_many(self, _):
        self.asked += 1
        yield from ()
        raise StoreError("a batch is refused")


def test_after_a_lasting_failure_of_a_whole_batch_each_key_asks_alone_at_once():
    store = Refusing()
    bids = [Bid(key, "a", None, Policy()) for key in ("one", "two")]
    assert [type(outcome) for outcome in drive(many.claim_many(store, bids), store)] == [steps.Won] * 2
    assert store.asked == 1


class EachAlone(OneByOne, Faults):
    """Each key of a batch is an exchange of its own."""


def test_a_locked_key_of_a_batch_is_busy_unless_its_own_reply_was_lost():
    lost = at({1: fail_before(lambda text: StoreError(text, transient=True))})
    store = EachAlone(MemoryStore(), lambda ask: lost(ask) or fail_before(KeyLocked))
    bids = [Bid(key, "a", None, Policy(lease=0.4)) for key in ("lost", "locked")]
    doubtful, locked = drive(many.claim_many(store, bids), store)
    assert (type(doubtful), type(locked)) == (KeyLocked, Refused)


LEASE = 0.45  # seconds; heartbeats renew it thrice in that time


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    """Pauses between tries that fit so short a lease, as a second fits one of a minute."""
    for module in (retries, many):
        monkeypatch.setattr(module, "LONGEST_PAUSE", 0.05)


def throttled(message):
    return StoreError(f"throttled: {message}", transient=True)


def no_end():
    """A ledger on which every heartbeat passes, and no claim ends."""
    return Faults(MemoryStore(), when(settling, fail_before(throttled)))


def handle(key="k"):
    return {"much": "x" * 10}


def fails(key="k"):
    raise ZeroDivisionError


@pytest.mark.filterwarnings("ignore::onceward.ResultWarning")
@pytest.mark.parametrize("form", ["run", "complete", "batch"])
def test_after_one_lease_a_key_completes_without_its_result(form):
    def act(_):
        too_large = lambda ask: settling(ask) and any(write.result is not None for write in ask.writes)
        store = Faults(MemoryStore(), when(too_large, fail_before(throttled)))
        called(Once(store, name="n", lease=LEASE), form, handle, "kl")
        return store

    store = within(LEASE * 1.9, act, least=LEASE * 0.5)
    assert {(record.status, record.result) for record in store.store.records.values()} == {(COMPLETED, None)}
    with pytest.raises(ResultUnavailable, match=r"throttled|within one lease"):
        Once(store, name="n").run("k", pytest.fail)


@pytest.mark.parametrize("form", ["run", "batch", "checkpoint"])
def test_after_two_leases_the_caller_is_told_that_it_was_not_recorded(form):
    def act(_):
        store = no_end()
        with pytest.raises(ResultNotRecorded, match="throttled"):
            called(Once(store, name="n", lease=LEASE), form, handle, "kl")
        return store

    store = within(LEASE * 3, act, least=LEASE * 1.3)
    assert {record.status for record in store.store.records.values()} == {IN_PROGRESS}


@pytest.mark.parametrize("form", ["run", "batch"])
def test_a_store_that_is_away_for_longer_than_a_lease_has_the_result_when_it_is_back(form):
    def act(_):
        ended = []

        def fault(ask):
            ended.extend([boottime()] if settling(ask) and not ended else [])
            is_away = ended and ask.verb != "load" and boottime() < ended[0] + LEASE * 1.4
            return fail_before(throttled) if is_away else None

        store = Faults(MemoryStore(), fault)
        once = Once(store, name="n", lease=LEASE)
        called(once, form, handle, "kl")
        return store, once

    store, once = within(LEASE * 1.7, act, least=LEASE * 1.3)
    assert {record.status for record in store.store.records.values()} == {COMPLETED}
    assert once.run("k", pytest.fail) == {"much": "x" * 10}


@each("is_group", [False, True])
def test_a_key_completed_in_vain_is_not_given_back_for_another_run(is_group):
    left = [fail_before(StoreError)] * 3
    store = Faults(MemoryStore(), lambda ask: left.pop() if left and settling(ask) else None)

    async def completes():
        await current().complete_async("done")

    async def groups():
        async with asyncio.TaskGroup() as group:
            group.create_task(completes())

    with pytest.raises(ExceptionGroup if is_group else ResultNotRecorded):
        asyncio.run(Once(store, name="n").run_async("k", groups if is_group else completes))
    assert [record.status for record in store.store.records.values()] == [IN_PROGRESS]


@each("end", [lambda claim: claim.complete("done"), lambda claim: claim.step("charge", list)])
def test_a_success_in_vain_is_not_released_for_another_run_but_can_be_parked(end):
    left = [fail_before(StoreError)] * 3
    store = Faults(MemoryStore(), lambda ask: left.pop() if left and ask.verb == "swap" else None)
    claim = Once(store, name="n").acquire("k")
    with pytest.raises(OncewardError, match="cannot release it"):
        try:
            end(claim)
        except (ResultNotRecorded, StepNotRecorded) as error:  # as in a handler of all errors
            claim.release(str(error))
    assert claim.lost
    assert [record.status for record in store.store.records.values()] == [IN_PROGRESS]
    left.clear()
    claim.park("somebody must look")
    assert [record.status for record in store.store.records.values()] == [PARKED]


@pytest.mark.parametrize("form", ["run", "batch", "checkpoint"])
def test_a_failure_is_not_tried_to_be_recorded_for_longer(form):
    def act(_):
        with pytest.raises(ZeroDivisionError) as raised:
            called(Once(no_end(), name="n", lease=LEASE), form, fails, "kl")
        assert any("throttled" in note for note in raised.value.__notes__)

    within(LEASE * 3, act, least=LEASE * 1.3)
