"""DESIGN.md's decision table row by row, each of the things that must always hold, by its number there, and owner ids that clients made."""

import time
from contextvars import Context

import pytest

from faults.injected import fail_after, fail_before, late, settling, twice, when
from onceward import Busy, LeaseLost, Once, OncewardError, StoreError, current
from onceward.core import protocol, steps
from onceward.core.drivers import Sleep, drive
from onceward.core.policy import Policy
from onceward.core.protocol import Verdict, decide, released
from onceward.core.record import COMPLETED, PARKED, RELEASED
from onceward.core.steps import Bid, Lost, Refused, Replay, Settled, Won
from stage import LEASE, NOW, PLAIN, Stage, record
from tables import each

pytestmark = pytest.mark.sampled(face=1)


LAPSED = {"lease_until": NOW - 1.0}


TABLE = {
    "no record is a first claim": (None, {}, Verdict.START),
    "expired with no live lease is a first claim": (record(COMPLETED, expires_at=NOW - 1.0, **LAPSED), {}, Verdict.START),
    "expired at this very moment is expired": (record(COMPLETED, expires_at=NOW, **LAPSED), {}, Verdict.START),
    "expired with a live lease is busy": (record(expires_at=NOW - 1.0), {}, Verdict.BUSY),
    "my own claim was won before": (record(owner="mine"), {}, Verdict.WON),
    "my own claim was won before, also when it lapsed": (record(owner="mine", **LAPSED), {}, Verdict.WON),
    "a live lease is busy": (record(), {}, Verdict.BUSY),
    "a lease is over at its very end": (record(lease_until=NOW), {}, Verdict.NEXT),
    "a lapsed lease is taken over": (record(**LAPSED), {}, Verdict.NEXT),
    "a lapsed lease is parked on demand": (record(**LAPSED), {"policy": Policy(on_lapse="park")}, Verdict.PARK),
    "a lapsed lease without attempts left is parked": (record(**LAPSED), {"policy": Policy(max_attempts=1)}, Verdict.PARK),
    "a lapsed lease with attempts left is taken over": (record(**LAPSED), {"policy": Policy(max_attempts=2)}, Verdict.NEXT),
    "a released key is claimed": (record(RELEASED, **LAPSED), {}, Verdict.NEXT),
    "a released key does not count as lapsed": (record(RELEASED, **LAPSED), {"policy": Policy(on_lapse="park")}, Verdict.NEXT),
    "a released key without attempts left is parked": (record(RELEASED, attempts=3), {"policy": Policy(max_attempts=3)}, Verdict.PARK),
    "a completed key is replayed": (record(COMPLETED, **LAPSED), {}, Verdict.REPLAY),
    "an equal fingerprint is replayed": (record(COMPLETED, fingerprint="f"), {"fingerprint": "f"}, Verdict.REPLAY),
    "no fingerprint asked is replayed": (record(COMPLETED, fingerprint="f"), {}, Verdict.REPLAY),
    "no fingerprint recorded is replayed": (record(COMPLETED), {"fingerprint": "f"}, Verdict.REPLAY),
    "another fingerprint is a mismatch": (record(COMPLETED, fingerprint="f"), {"fingerprint": "g"}, Verdict.MISMATCH),
    "another fingerprint of a running key is a mismatch": (record(fingerprint="f"), {"fingerprint": "g"}, Verdict.MISMATCH),
    "another fingerprint of a released key is a mismatch": (record(RELEASED, fingerprint="f"), {"fingerprint": "g"}, Verdict.MISMATCH),
    "a parked key is parked": (record(PARKED, expires_at=None), {}, Verdict.PARKED),
    "an expired key has forgotten its fingerprint": (
        record(COMPLETED, fingerprint="f", expires_at=NOW - 1.0, **LAPSED), {"fingerprint": "g"}, Verdict.START
    ),
}  # fmt: skip


@each("row", TABLE)
def test_the_decision_table(row):
    held, asked, verdict = TABLE[row]
    policy = asked.get("policy", Policy())
    assert decide(held, NOW, "mine", asked.get("fingerprint"), policy) is verdict
    if row.partition(" ")[0] != "my":  # what others hold is decided as ever
        assert decide(held, NOW, "mine", asked.get("fingerprint"), policy, single_use=True) is verdict


def test_1_a_second_claim_is_busy_until_the_lease_ends(stage):
    first = stage.claim("a")
    stage.clock.advance(59.0)
    refused = stage.claim("b")
    assert refused.verdict is Verdict.BUSY
    assert refused.wait == pytest.approx(stage.record.lease_until - stage.clock())
    stage.clock.advance(1.0)
    second = stage.claim("b")
    assert second.record.attempts == 2
    assert second.record.fence > first.record.fence


def test_1_of_two_takeovers_only_one_succeeds(stage):
    stage.claim("gone")
    stage.clock.advance(61.0)
    asking = steps.claim(stage.store, Bid("k", "a", None, Policy(lease=LEASE), stage.clock))

    def meanwhile(number):
        if number == 2:  # after the look at the lapsed record, before the swap
            assert isinstance(stage.claim("b"), Won)

    outcome = stage.drive(asking, meanwhile)
    assert isinstance(outcome, Refused)
    assert outcome.verdict is Verdict.BUSY
    assert stage.record.owner == "b"


def test_1_a_request_that_arrives_late_takes_nothing_from_a_live_lease(stage):
    """The explorer's find: one bid may claim twice, and a version of its first claim must not fit its second."""

    def fail(steps):
        request = steps.throw(StoreError("timed out", transient=True))
        while isinstance(request, Sleep):
            request = steps.send(None)
        return request

    a = steps.claim(stage.store, Bid("k", "a", None, PLAIN, stage.clock))
    stage.store.exchange(next(a))  # a's insert is made, its reply is lost
    again = fail(a)  # a asks again, and that request is slow
    stage.clock.advance(61.0)
    b = steps.claim(stage.store, Bid("k", "b", None, PLAIN, stage.clock))
    takeover = b.send(stage.store.exchange(next(b)))  # b's takeover of a's first claim is given up, and on its way
    with pytest.raises(StopIteration) as end:  # b's second try wins
        b.send(stage.store.exchange(fail(b)))
    assert isinstance(stage.end(end.value.value.record, protocol.released("boom")), Settled)
    swap = a.send(stage.store.exchange(again))  # a meets the released record, and claims it once more
    with pytest.raises(StopIteration) as end:
        a.send(stage.store.exchange(swap))
    assert isinstance(end.value.value, Won)
    stage.store.exchange(takeover)  # only now b's first takeover arrives
    assert stage.record == end.value.value.record


@pytest.mark.parametrize("outcome", [protocol.completed("1"), protocol.released("x"), protocol.parked("x")])
@pytest.mark.parametrize("is_over", [False, True])
def test_2_a_zombie_is_refused_and_its_successors_record_stands(stage, outcome, is_over):
    zombie = stage.claim("zombie").record
    stage.clock.advance(61.0)
    heir = stage.claim("heir").record
    if is_over:
        stage.end(heir, protocol.completed("heir"))
    before = stage.record
    assert isinstance(stage.end(zombie, outcome), Lost)
    assert isinstance(stage.beat(zombie), Lost)
    assert stage.record == before


def test_2_a_zombie_sees_it_and_is_told_lease_lost(stage, face):
    heir = stage.handler("heir")

    def zombie():
        claim = current()
        assert not claim.lost
        stage.clock.advance(61.0)
        assert (claim.lost, claim.remaining) == (True, 0.0)
        assert Context().run(stage.once().run, 1, heir) == "heir"  # a context may not ask for its own key
        with pytest.raises(LeaseLost):
            claim.extend()
        return "zombie"

    zombie.__qualname__ = "handle"
    with pytest.raises(LeaseLost, match="lost before it could record its result"):
        face.run(stage.once(), 1, zombie)
    assert stage.once().run(1, heir) == "heir"
    assert stage.runs == ["heir"]


def test_2_completing_after_a_lapse_without_a_takeover_still_succeeds(stage, face):
    def slow():
        stage.clock.advance(1000.0)
        return "late"

    slow.__qualname__ = "handle"
    assert face.run(stage.once(), 1, slow) == "late"
    assert stage.record.status == COMPLETED


@pytest.mark.parametrize("value", [None, 0, False, "", [], {}, 0.0, {"a": [1, None]}], ids=repr)
def test_3_a_replay_returns_exactly_what_was_recorded(stage, face, value):
    once = stage.once(retention=None)
    assert face.run(once, 1, stage.handler(value)) == value
    stage.clock.advance(1e9)  # kept for ever
    replayed = face.run(once, 1, stage.handler("again"))
    assert replayed == value
    assert type(replayed) is type(value)
    assert stage.runs == [value]


def test_3_a_completed_record_is_not_claimed_released_or_parked(stage):
    won = stage.claim("a").record
    stage.end(won, protocol.completed("1"))
    before = stage.record
    assert isinstance(stage.claim("b"), Replay)
    for outcome in (protocol.released("x"), protocol.parked("x")):
        assert isinstance(stage.end(won, outcome), Lost)
    assert stage.record == before


FAULTS = [fail_before(), fail_after(), twice(), late()]
every_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.kind.name)


@every_fault
def test_4_a_claim_whose_exchange_fails_is_still_one_claim(stage, face, fault):
    stage.fail_next(fault)
    assert face.run(stage.once(), 1, stage.handler()) == "result"
    assert stage.runs == ["result"]
    assert (stage.record.attempts, stage.record.status) == (1, COMPLETED)


@every_fault
def test_4_a_takeover_whose_exchange_fails_is_still_one_claim(stage, fault):
    stage.claim("gone")
    stage.clock.advance(61.0)
    stage.plan(when(lambda ask: ask.verb == "swap", fault, times=1))
    assert (stage.claim("a").record.attempts, stage.record.owner) == (2, "a")


@every_fault
def test_4_completing_recognises_its_own_write(stage, face, fault):
    stage.plan(when(settling, fault, times=1))
    assert face.run(stage.once(), 1, stage.handler()) == "result"
    assert stage.record.result == '"result"'


@every_fault
@pytest.mark.parametrize(("policy", "status"), [({}, RELEASED), ({"on_error": "park"}, PARKED)])
def test_4_releasing_and_parking_recognise_their_own_write(stage, face, fault, policy, status):
    stage.plan(when(settling, fault, times=1))
    with pytest.raises(ValueError, match="boom") as caught:
        face.run(stage.once(**policy), 1, stage.handler(error=ValueError("boom")))
    assert not getattr(caught.value, "__notes__", [])
    assert (stage.record.status, stage.record.attempts) == (status, 1)


@every_fault
def test_4_parking_a_lapsed_key_recognises_its_own_write(stage, fault):
    stage.claim("gone")
    stage.clock.advance(61.0)
    stage.plan(when(settling, fault, times=1))
    refused = stage.claim("a", Policy(lease=LEASE, on_lapse="park"))
    assert refused.verdict is Verdict.PARKED
    assert stage.record.status == PARKED


def test_a_lapsed_key_that_waits_for_a_person_waits_for_ever(stage):
    policy = Policy(lease=LEASE, on_lapse="park")
    won = stage.claim("gone", policy)
    assert (
        min(stage.record.expires_at, stage.beat(won.record, policy).record.expires_at) > stage.record.lease_until + 1e10
    )
    stage.clock.advance(1e9)
    assert stage.claim("a", policy).verdict is Verdict.PARKED
    assert stage.claim("b").verdict is Verdict.PARKED


def test_4_a_heartbeat_whose_reply_was_lost_is_recognised_also_by_the_end(stage):
    won = stage.claim("a")
    stage.fail_next(fail_after())
    with pytest.raises(StoreError):
        stage.beat(won.record)
    stage.clock.advance(30.0)
    again = stage.beat(won.record)
    assert isinstance(again, Won)
    assert again.record == stage.record
    assert isinstance(stage.end(won.record, protocol.completed("1")), Settled)
    assert stage.record.result == "1"


def test_4_a_claim_recovered_late_in_its_lease_is_renewed_first(stage):
    stage.claim("a")
    stage.clock.advance(40.0)
    won = stage.claim("a")  # asks again as the same owner
    assert isinstance(won, Won)
    assert won.until - stage.clock() == pytest.approx(LEASE * 0.99)


@pytest.mark.parametrize("skew", [-3600.0, 3600.0])
def test_5_a_worker_whose_clock_is_an_hour_off_decides_as_the_store_does(stage, skew, monkeypatch):
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + skew)
    theirs = Once(stage.store, name="n", clock=lambda: stage.clock() + skew, lease=LEASE, retention=100.0)
    claim = stage.once().acquire("k")
    with pytest.raises(Busy):
        theirs.acquire("k")
    claim.complete("mine")
    with pytest.raises(OncewardError, match="completed already"):
        theirs.acquire("k")
    other = theirs.acquire("other")
    assert not other.lost
    stage.clock.advance(60.0)
    assert other.lost


def test_6_the_lease_is_counted_from_before_the_request_and_by_no_time_that_goes_back(stage):
    for number, back in enumerate((0.0, 100.0)):
        asking = steps.claim(stage.store, Bid(f"k{number}", "a", None, Policy(lease=LEASE), stage.clock))
        sent = stage.clock()
        request = next(asking)
        stage.clock.advance(10.0)  # on its way there
        reply = stage.store.exchange(request)
        stage.clock.advance(10.0)  # on its way back
        with pytest.raises(StopIteration) as end:
            asking.send(reply._replace(now=reply.now - back))
        assert end.value.value.until == pytest.approx(sent + LEASE * 0.99, abs=1e-3)


def test_6_the_belief_ends_a_hundredth_and_the_resolution_before_lease(stage):
    stage.store.resolution = 2.0
    won = stage.claim("a")
    assert won.until == pytest.approx(stage.record.lease_until - 0.6 - 2.0, abs=1e-3)


def test_6_a_claim_taken_over_while_its_reply_was_on_its_way_is_busy(stage):
    asking = steps.claim(stage.store, Bid("k", "a", None, Policy(lease=LEASE), stage.clock))
    reply = stage.store.exchange(next(asking))
    stage.clock.advance(61.0)
    heir = stage.claim("heir")
    with pytest.raises(StopIteration) as end:
        asking.send(stage.store.exchange(asking.send(reply)))
    assert isinstance(end.value.value, Refused)
    assert stage.record == heir.record


def test_the_fence_grows_over_releases_takeovers_expiry_and_purge(stage):
    policy = Policy(lease=LEASE, retention=100.0)
    fences = []

    def claim(owner):
        record = stage.claim(owner, policy).record
        fences.append(record.fence)
        return record

    stage.end(claim("released"), protocol.released("x"), policy)
    claim("lapsed")
    stage.clock.advance(61.0)
    stage.end(claim("completed"), protocol.completed("1"), policy)
    stage.clock.advance(200.0)
    stage.end(claim("after expiry"), protocol.completed("1"), policy)
    stage.clock.advance(200.0)
    assert drive(stage.memory.purge(10), stage.memory).deleted == 1
    claim("after the purge")
    assert fences == sorted(set(fences))
    assert stage.record.attempts == 1


MINE = {"owner": "mine"}


@each(
    ("held", "verdict"),
    [
        (record(**MINE), Verdict.WON),
        (record(**MINE, **LAPSED), Verdict.USED),
        (record(**MINE, lease_until=NOW), Verdict.USED),
        (record(COMPLETED, **MINE), Verdict.USED),
        (record(RELEASED, **MINE), Verdict.USED),
        (record(PARKED, **MINE), Verdict.USED),
        (record(COMPLETED, **MINE, expires_at=NOW - 1.0, lease_until=NOW - 2.0), Verdict.USED),
        (record("UNHEARD_OF", **MINE), Verdict.UNKNOWN),
    ],
)
def test_an_owner_that_a_client_made_has_one_claim(held, verdict):
    assert decide(held, NOW, "mine", None, Policy(), single_use=True) is verdict


@each(("mark", "verdict"), [("a", Verdict.WON), (None, Verdict.WON), ("b", Verdict.MISMATCH)])
def test_a_repeated_request_has_the_same_input(mark, verdict):
    assert decide(record(**MINE, fingerprint="a"), NOW, "mine", mark, Policy(), single_use=True) is verdict


class Client(Stage):
    """Claims one key as an owner of its own making."""

    def bid(self, owner="x" * 32, **options):
        bid = Bid("k", owner, None, PLAIN._replace(**options), self.clock)
        return steps.claim(self.store, bid, single_use=True)

    def claim(self, owner="x" * 32):
        return self.drive(self.bid(owner))


def test_a_repeated_request_gets_the_same_claim():
    client = Client()
    first = client.claim()
    client.clock.advance(45.0)  # most of the lease is over, and a repeat does not renew it
    again = client.claim()
    assert again.record == first.record
    assert again.until == pytest.approx(first.until, abs=0.1)


def test_one_that_waits_takes_no_claim_that_its_own_repeat_has_ended():
    """The client gave up on its first request, and the same request was won and ended elsewhere."""
    client = Client()
    other = client.claim("y" * 32)
    waiting = client.bid(on_busy=30.0)
    request = next(waiting)
    request = waiting.send(client.store.exchange(request))  # busy: it sleeps
    client.end(other.record, released())
    client.end(client.claim().record, released())
    with pytest.raises(StopIteration) as end:
        while True:
            request = waiting.send(None if isinstance(request, Sleep) else client.store.exchange(request))
    assert end.value.value.verdict is Verdict.USED
