"""Many claims in one exchange: their leases, and their ends."""

from onceward.core import many, steps
from onceward.core.drivers import drive
from onceward.core.policy import Policy
from onceward.core.protocol import completed, released
from onceward.stores.memory import MemoryStore
from onceward.testing.clock import ManualClock


def test_a_claim_that_has_ended_is_not_ended_again_with_others():
    clock = ManualClock()
    store = MemoryStore(clock)
    records = [
        drive(steps.claim(store, steps.Bid(key, key, None, Policy(), clock)), store).record for key in ("over", "open")
    ]
    over = drive(steps.end(store, records[0], completed("1"), Policy(), clock=clock, until=clock), store).record
    ends = [(over, released("boom"), Policy()), (records[1], completed("2"), Policy())]
    answers = drive(many.end_many(store, ends, clock, clock), store)
    assert answers[0] is None
    assert answers[1].record.result == "2"
    assert store.records["over"] == over
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


class Impatient(MemoryStore):
    """A store that takes one request of a heartbeat, and no second one."""

    asked = 0

    def swap_many(self, pairs):
        self.asked += 1
        assert self.asked == 1, "a refused heartbeat is sent again and again"
        return (yield from super().swap_many(pairs))


def test_a_heartbeat_of_a_key_that_another_has_taken_over_is_refused_at_once():
    clock = ManualClock()
    store, policy = Impatient(clock), Policy(lease=60.0)
    mine = drive(steps.claim(store, steps.Bid("k", "mine", None, policy, clock)), store).record
    clock.advance(61.0)
    other = drive(steps.claim(store, steps.Bid("k", "other", None, policy, clock)), store).record
    assert drive(steps.renewals(store, [(mine, 60.0)], [policy], clock), store) == [steps.Lost(other)]
    assert store.records["k"] == other
