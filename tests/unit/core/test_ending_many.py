"""Many claims in one exchange: their leases and ends, and keys that an open transaction holds."""

import pytest

from onceward import Busy, Once, StoreError
from onceward.core import many, steps
from onceward.core.drivers import drive
from onceward.core.policy import Policy
from onceward.core.protocol import completed, released
from onceward.core.register import KeyLocked
from onceward.core.steps import Bid, Refused
from onceward.stores.contract import OneByOne
from onceward.stores.memory import MemoryStore
from onceward.testing.clock import ManualClock
from onceward.testing.faults import Faults, at, fail_before


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
