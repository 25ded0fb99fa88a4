"""DESIGN.md's decision table row by row, and each of the things that must always hold, by its number there."""

import asyncio
import contextlib
import sqlite3
import time
from contextvars import Context

import pytest

from onceward import (
    Busy,
    KeyMissing,
    LeaseLost,
    Mismatch,
    Once,
    OncewardError,
    Parked,
    ResultNotRecorded,
    ResultUnavailable,
    ResultWarning,
    StoreError,
    current,
)
from onceward.core import protocol, steps
from onceward.core.drivers import Sleep, drive
from onceward.core.policy import Policy
from onceward.core.protocol import Verdict, decide
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED, Record, Reply
from onceward.core.steps import Bid, Lost, Refused, Replay, Settled, Won
from onceward.stores.memory import MemoryStore
from onceward.testing import Faults, ManualClock
from onceward.testing.bench import claim_of
from onceward.testing.faults import at, fail_after, fail_before, late, settling, twice, when
from tables import each

pytestmark = pytest.mark.sampled(face=1)

NOW = 1_000_000.0
LEASE = 60.0
PLAIN = Policy(lease=LEASE)


def record(status=IN_PROGRESS, **changes) -> Record:
    made = claim_of("k", "theirs", status=status, fence=7, beat=3).at(NOW - 30.0)
    return made._replace(lease_until=NOW + 30.0, expires_at=NOW + 900.0)._replace(**changes)


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


# --- the stage ----------------------------------------------------------------------------------------------------


class Stage:
    """A memory store behind faults, on a clock moved by hand."""

    def __init__(self, store=MemoryStore) -> None:
        self.clock = ManualClock()
        self.memory = store(self.clock)
        self.store = Faults(self.memory, lambda ask: None)
        self.runs = []

    def once(self, **options) -> Once:
        options.setdefault("lease", LEASE)
        return Once(self.store, name="n", clock=self.clock, **options)

    def plan(self, plan) -> None:
        self.store.plan = plan

    def fail_next(self, *faults) -> None:
        first = len(self.store.asked) + 1
        self.plan(at(dict(enumerate(faults, first))))

    @property
    def record(self) -> Record:
        (found,) = self.memory.records.values()
        return found

    def handler(self, value="result", error=None):
        def handle():
            self.runs.append(value)
            if error is not None:
                raise error
            return value

        handle.__qualname__ = "handle"
        return handle

    def drive(self, steps, between=None):
        """Drive by hand, time passing instead of sleeping; ``between(n)`` runs before the n-th exchange."""
        number = 0
        try:
            request = next(steps)
            while True:
                if isinstance(request, Sleep):
                    self.clock.advance(request.seconds)
                    request = steps.send(None)
                    continue
                number += 1
                if between:
                    between(number)
                try:
                    reply = self.store.exchange(request)
                except Exception as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(reply)
        except StopIteration as end:
            return end.value

    def claim(self, owner="a", policy=PLAIN, fingerprint=None):
        return self.drive(steps.claim(self.store, Bid("k", owner, fingerprint, policy, self.clock)))

    def end(self, record, outcome, policy=PLAIN, seconds=LEASE):
        limit = self.clock() + seconds
        return self.drive(steps.end(self.store, record, outcome, policy, clock=self.clock, until=lambda: limit))

    def beat(self, record, policy=PLAIN):
        (outcome,) = self.drive(steps.heartbeat(self.store, [(record, policy.lease)], [policy], self.clock))
        return outcome


@pytest.fixture
def stage():
    return Stage()


class Both:
    """The sync and the async face of Once, as one."""

    def __init__(self, is_async: bool) -> None:
        self.is_async = is_async

    def run(self, once: Once, key, handler):
        if not self.is_async:
            return once.run(key, handler)

        async def handle():
            return handler()

        handle.__qualname__ = handler.__qualname__
        return asyncio.run(once.run_async(key, handle))


@pytest.fixture(params=["sync", "async"])
def face(request):
    return Both(request.param == "async")


# --- 1. between a claim and the end of its lease no other claim succeeds --------------------------------------------


def test_1_a_second_claim_is_busy_until_the_lease_ends(stage):
    first = stage.claim("a")
    for _ in range(3):
        refused = stage.claim("b")
        assert isinstance(refused, Refused)
        assert refused.verdict is Verdict.BUSY
        assert refused.wait == pytest.approx(stage.record.lease_until - stage.clock())
        stage.clock.advance(19.0)
    stage.clock.advance(3.0)
    second = stage.claim("b")
    assert isinstance(second, Won)
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


# --- 2. only the owner may heartbeat, complete, release or park -------------------------------------------------------


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
    def heir():
        stage.runs.append("heir")
        return "heir"

    heir.__qualname__ = "handle"

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


# --- 3. completed is final, and a replay is exactly what was recorded ------------------------------------------------


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


def test_3_a_completed_record_answers_until_its_retention_is_over(stage, face):
    once = stage.once(retention=100.0)
    face.run(once, 1, stage.handler("first"))
    stage.clock.advance(99.0)
    assert face.run(once, 1, stage.handler("second")) == "first"
    stage.clock.advance(2.0)
    assert face.run(once, 1, stage.handler("second")) == "second"


# --- 4. a lost reply is not a lost write ------------------------------------------------------------------------------


every_fault = pytest.mark.parametrize(
    "fault", [fail_before(), fail_after(), twice(), late()], ids=lambda fault: fault.kind.name
)


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
    won = stage.claim("a")
    assert isinstance(won, Won)
    assert (won.record.attempts, stage.record.owner) == (2, "a")


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


# --- 5. no decision compares a worker's wall clock with a stored time -------------------------------------------------


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


# --- 6. the owner stops believing before anyone else may take over ----------------------------------------------------


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


def test_6_a_claim_whose_reply_is_slow_is_renewed_before_the_handler_runs(stage):
    asking = steps.claim(stage.store, Bid("k", "a", None, Policy(lease=LEASE), stage.clock))
    reply = stage.store.exchange(next(asking))
    stage.clock.advance(61.0)
    renewal = asking.send(reply)
    with pytest.raises(StopIteration) as end:
        asking.send(stage.store.exchange(renewal))
    assert end.value.value.until > stage.clock() + LEASE / 2


def test_6_a_claim_taken_over_while_its_reply_was_on_its_way_is_busy(stage):
    asking = steps.claim(stage.store, Bid("k", "a", None, Policy(lease=LEASE), stage.clock))
    reply = stage.store.exchange(next(asking))
    stage.clock.advance(61.0)
    heir = stage.claim("heir")
    with pytest.raises(StopIteration) as end:
        asking.send(stage.store.exchange(asking.send(reply)))
    assert isinstance(end.value.value, Refused)
    assert stage.record == heir.record


# --- 7. once the handler has succeeded, recording cannot make it run again --------------------------------------------


@pytest.mark.parametrize(("value", "options"), [("x" * 100, {"max_result": 10}), (object(), {})])
def test_7_a_result_that_is_too_large_or_cannot_be_encoded_completes_the_record(stage, face, value, options):
    once = stage.once(**options)
    with pytest.warns(ResultWarning, match="max_result=10" if options else None):
        assert face.run(once, 1, stage.handler(value)) is value
    assert stage.record.status == COMPLETED
    with pytest.raises(ResultUnavailable, match="max_result=10" if options else None):
        face.run(once, 1, stage.handler("again"))
    assert stage.runs == [value]


def test_7_a_result_that_the_store_refuses_completes_the_record(stage, face):
    refuse = fail_before(lambda message: StoreError("too big for me"))
    stage.plan(when(lambda ask: any(w.result is not None for w in ask.writes), refuse))
    once = stage.once()
    with pytest.warns(ResultWarning, match="too big for me"):
        assert face.run(once, 1, stage.handler()) == "result"
    assert stage.record.status == COMPLETED
    with pytest.raises(ResultUnavailable, match="too big for me"):
        face.run(once, 1, stage.handler("again"))


def test_7_a_settle_is_retried_while_the_store_is_away(stage, face):
    stage.plan(when(settling, fail_before(), times=3))
    assert face.run(stage.once(), 1, stage.handler()) == "result"
    assert stage.record.status == COMPLETED


def test_7_if_the_store_stays_away_the_error_has_the_result(stage, face):
    away = fail_before()._replace(seconds=20.0, sleep=stage.clock.advance)
    stage.plan(when(settling, away))
    with pytest.raises(ResultNotRecorded) as caught:
        face.run(stage.once(), 1, stage.handler())
    assert caught.value.result == "result"
    assert isinstance(caught.value.__cause__, StoreError)
    assert stage.record.status == IN_PROGRESS
    assert sum(settling(ask) for ask in stage.store.asked) >= 3


# --- 8. if the store cannot be reached at the claim, the handler does not run -----------------------------------------


@pytest.mark.parametrize("fault", [fail_before(), fail_after()], ids=lambda fault: fault.kind.name)
def test_8_no_store_no_handler(stage, face, fault):
    stage.plan(when(lambda ask: True, fault._replace(seconds=1.0, sleep=stage.clock.advance)))
    with pytest.raises(StoreError):
        face.run(stage.once(), 1, stage.handler())
    assert stage.runs == []


def test_8_an_error_for_good_is_not_tried_again(stage, face):
    stage.plan(when(lambda ask: True, fail_before(StoreError)))
    with pytest.raises(StoreError):
        face.run(stage.once(), 1, stage.handler())
    assert len(stage.store.asked) == 1


# --- 9. the handler's own exception is never masked; a cancelled handler does not release -----------------------------


def test_9_a_failed_handler_gives_the_key_back_and_counts_until_it_is_parked(stage, face):
    once, fences = stage.once(max_attempts=3), []
    for attempt, status in ((1, RELEASED), (2, RELEASED), (3, PARKED)):
        with pytest.raises(ValueError, match="boom"):
            face.run(once, 1, stage.handler(error=ValueError("boom")))
        held = stage.record
        assert (held.status, held.attempts, held.error) == (status, attempt, "ValueError: boom")
        fences.append(held.fence)
    assert fences == sorted(set(fences))
    with pytest.raises(Parked) as caught:
        face.run(once, 1, stage.handler())
    assert (caught.value.attempts, caught.value.last_error) == (3, "ValueError: boom")
    once.ledger.unpark(stage.record.key)
    assert once.run(1, stage.handler()) == "result"
    assert (stage.record.attempts, len(stage.runs)) == (1, 4)


def test_9_a_failure_to_release_is_a_note_on_the_handlers_exception(stage, face):
    stage.plan(when(settling, fail_before(lambda message: StoreError("gone for good"))))
    with pytest.raises(ValueError, match="boom") as caught:
        face.run(stage.once(), 1, stage.handler(error=ValueError("boom")))
    assert "gone for good" in " ".join(caught.value.__notes__)


def test_9_lapses_use_up_attempts_too(stage):
    policy = Policy(lease=LEASE, max_attempts=2)
    for owner in ("a", "b"):
        assert isinstance(stage.claim(owner, policy), Won)
        stage.clock.advance(61.0)
    refused = stage.claim("c", policy)
    assert refused.verdict is Verdict.PARKED
    assert "lapsed" in refused.record.error


@pytest.mark.parametrize(
    "interrupt",
    [
        KeyboardInterrupt(),
        SystemExit(),
        GeneratorExit(),
        BaseExceptionGroup("x", [KeyboardInterrupt()]),
        asyncio.CancelledError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_9_an_interrupted_or_cancelled_handler_leaves_the_key_claimed(stage, face, interrupt):
    with pytest.raises(type(interrupt)):
        face.run(stage.once(), 1, stage.handler(error=interrupt))
    assert stage.record.status == IN_PROGRESS
    with pytest.raises(Busy):
        stage.once().run(1, stage.handler())
    stage.clock.advance(61.0)
    assert stage.once().run(1, stage.handler()) == "result"
    assert stage.record.attempts == 2


# --- interrupts in the claim and in the settling ----------------------------------------------------------------------


@pytest.mark.parametrize("fault", [fail_before(KeyboardInterrupt), fail_after(SystemExit)])
def test_an_interrupted_claim_gives_the_key_back_without_counting_attempt(stage, fault):
    stage.fail_next(fault)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        stage.once().run(1, stage.handler())
    assert stage.runs == []
    assert (stage.record.status, stage.record.attempts) == (RELEASED, 0)
    assert stage.once(max_attempts=1).run(1, stage.handler()) == "result"


def test_an_interrupted_claim_of_a_released_key_gives_it_back_as_it_was(stage):
    once = stage.once()
    with pytest.raises(ValueError, match="boom"):
        once.run(1, stage.handler(error=ValueError("boom")))
    stage.fail_next(fail_after(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        once.run(1, stage.handler())
    assert (stage.record.status, stage.record.attempts, stage.record.error) == (RELEASED, 1, "ValueError: boom")


def test_a_claim_request_that_arrives_late_opens_nothing_of_its_own_again(stage):
    stage.claim("other")
    stage.clock.advance(61.0)
    stage.fail_next(late(after=3))
    won = stage.claim("a")  # by a second request
    assert isinstance(stage.end(won.record, protocol.released("boom")), Settled)
    before = stage.record
    stage.drive(stage.store.load("k"))  # now the first request arrives
    assert stage.record == before


def test_an_interrupted_claim_gives_back_nothing_that_is_somebody_elses(stage):
    stage.once().acquire("k")
    before = stage.record
    stage.fail_next(fail_after(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        stage.once().acquire("k")
    assert stage.record == before


@pytest.mark.parametrize("fault", [fail_before(KeyboardInterrupt), fail_after(SystemExit)])
@pytest.mark.parametrize(("error", "status"), [(None, COMPLETED), (ValueError("boom"), RELEASED)])
def test_an_interrupted_settle_still_records(stage, fault, error, status):
    stage.plan(when(settling, fault, times=1))
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        stage.once().run(1, stage.handler(error=error))
    assert (stage.record.status, stage.record.result) == (status, None if error else '"result"')


def test_who_interrupts_a_settle_twice_means_it(stage):
    stage.plan(when(settling, fail_before(KeyboardInterrupt)))
    with pytest.raises(KeyboardInterrupt) as raised:
        stage.once().run(1, stage.handler())
    assert sum(settling(ask) for ask in stage.store.asked) == 2
    assert any("was not recorded here" in note for note in raised.value.__notes__)


class Stalls(MemoryStore):
    """An exchange that waits at its gate, after its write, while ``stall`` picks it."""

    def __init__(self, clock) -> None:
        super().__init__(clock)
        self.stall = lambda number: False
        self.waiting = asyncio.Event()
        self.count = 0

    async def exchange_async(self, request):
        self.count += 1
        reply = self.exchange(request)
        if self.stall(self.count):
            self.waiting.set()
            await asyncio.sleep(3600)
        return reply


@pytest.mark.parametrize(("number", "status", "attempts"), [(1, RELEASED, 0), (2, COMPLETED, 1)])
def test_a_cancelled_claim_is_given_back_and_cancelled_settle_is_recorded(number, status, attempts):
    async def handle():
        return "result"

    async def main():
        clock = ManualClock()
        store = Stalls(clock)
        store.stall = lambda count: count == number
        task = asyncio.create_task(Once(store, clock=clock).run_async(1, handle))
        await store.waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        (record,) = store.records.values()
        return record

    record = asyncio.run(main())
    assert (record.status, record.attempts) == (status, attempts)


# --- fences, fingerprints, lapses -------------------------------------------------------------------------------------


def test_the_fence_grows_over_releases_takeovers_expiry_and_purge(stage):
    policy = Policy(lease=LEASE, retention=100.0)
    fences = []

    def claim(owner):
        won = stage.claim(owner, policy)
        assert isinstance(won, Won)
        fences.append(won.record.fence)
        return won.record

    stage.end(claim("released"), protocol.released("x"), policy)
    claim("lapsed")
    stage.clock.advance(61.0)
    stage.end(claim("completed"), protocol.completed("1"), policy)
    stage.clock.advance(200.0)
    assert claim("after expiry")
    stage.end(stage.record, protocol.completed("1"), policy)
    stage.clock.advance(200.0)
    assert drive(stage.memory.purge(10), stage.memory).gone == 1
    claim("after the purge")
    assert fences == sorted(set(fences))
    assert stage.record.attempts == 1


def test_10_a_missing_key_or_another_fingerprint_is_an_error_and_nothing_runs(stage):
    @stage.once()(key="[shop, order.id]", fingerprint="order.amount", name="charge")
    def charge(shop, order):
        stage.runs.append(order)
        return order["amount"]

    for order in ({}, {"id": None}, {"id": ""}, None, {"id": []}):
        with pytest.raises(KeyMissing):
            charge("shop", order)
    assert (stage.runs, stage.store.asked) == ([], [])
    assert charge("shop", {"id": 1, "amount": 5}) == charge("shop", {"id": 1, "amount": 5}) == 5
    with pytest.raises(Mismatch):
        charge("shop", {"id": 1, "amount": 6})
    assert len(stage.runs) == 1
    assert stage.once()(key="[shop, order.id]", name="charge")(lambda shop, order: 0)("shop", {"id": 1}) == 5


def test_on_lapse_park_parks_the_key_of_a_worker_that_vanished(stage, face):
    once = stage.once(on_lapse="park")
    with pytest.raises(SystemExit):
        once.run(1, stage.handler(error=SystemExit()))
    stage.clock.advance(61.0)
    for _ in range(2):
        with pytest.raises(Parked, match="lapsed"):
            face.run(once, 1, stage.handler())
    assert len(stage.runs) == 1


def test_a_cancelled_claim_of_released_key_is_given_back_behind_its_write(tmp_path):
    once = Once(f"sqlite:///{tmp_path / 'ledger.db'}")
    with pytest.raises(ValueError, match="boom"), once.claim("k"):
        raise ValueError("boom")

    async def main():
        with contextlib.closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            task = asyncio.create_task(once.acquire_async("k"))
            await asyncio.sleep(0.2)  # until its swap waits for the file's write lock
            task.cancel()
            await asyncio.sleep(0.2)
            other.execute("COMMIT")
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.3)

    asyncio.run(main())
    ((record, _),) = once.ledger.records()
    once.close()
    assert (record.status, record.attempts) == (RELEASED, 1)


def test_a_store_that_refuses_what_it_shows_is_not_asked_for_ever():
    class Refuses(MemoryStore):
        def _swap(self, write, seen):
            return Reply(False, self.records[write.key], self._clock())

    clock = ManualClock()
    store = Refuses(clock)
    drive(store.insert(claim_of("k", "dead", lease=1.0, keep=100.0)), store)
    clock.advance(2)
    with pytest.raises(RuntimeError, match="refuses to change"):
        drive(steps.claim(store, steps.Bid("k", "me", None, Policy(), clock)), store)
