"""What must always hold at the end of a handler, by its number in DESIGN.md: 7 to 10, and interrupts of a claim and of an end."""

import asyncio

import pytest

import onceward
from faults.injected import fail_after, fail_before, late, settling, when
from onceward.core import protocol
from onceward.core.drivers import drive, drive_async
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED, RELEASED
from onceward.core.steps import Settled
from onceward.stores.memory import MemoryStore
from tables import each

pytestmark = pytest.mark.sampled(face=1)


@pytest.mark.parametrize(("value", "options"), [("x" * 100, {"max_result": 10}), (object(), {})])
def test_7_a_result_that_is_too_large_or_cannot_be_encoded_completes_the_record(stage, face, value, options):
    once = stage.once(**options)
    with pytest.warns(onceward.ResultWarning, match="max_result=10" if options else None):
        assert face.run(once, 1, stage.handler(value)) is value
    assert stage.record.status == COMPLETED
    with pytest.raises(onceward.ResultUnavailable, match="max_result=10" if options else None):
        face.run(once, 1, stage.handler("again"))
    assert stage.runs == [value]


def test_7_a_result_that_the_store_refuses_completes_the_record_and_one_that_is_away_is_asked_again(stage, face):
    away, refuse = fail_before(), fail_before(lambda message: onceward.StoreError("too big for me"))
    stage.plan(when(settling, away, times=3))
    assert face.run(stage.once(), "away", stage.handler()) == "result"
    stage.plan(when(lambda ask: any(w.result is not None for w in ask.writes), refuse))
    with pytest.warns(onceward.ResultWarning, match="too big for me"):
        assert face.run(stage.once(), "refuses", stage.handler()) == "result"
    assert {record.status for record in stage.memory.records.values()} == {COMPLETED}
    with pytest.raises(onceward.ResultUnavailable, match="too big for me"):
        face.run(stage.once(), "refuses", stage.handler("again"))


def test_7_if_the_store_stays_away_the_error_has_the_result(stage, face):
    away = fail_before()._replace(seconds=20.0, sleep=stage.clock.advance)
    stage.plan(when(settling, away))
    with pytest.raises(onceward.ResultNotRecorded) as caught:
        face.run(stage.once(), 1, stage.handler())
    assert caught.value.result == "result"
    assert isinstance(caught.value.__cause__, onceward.StoreError)
    assert stage.record.status == IN_PROGRESS
    assert sum(settling(ask) for ask in stage.store.asked) >= 3


@pytest.mark.parametrize("fault", [fail_before(), fail_after(), fail_before(onceward.StoreError)])
def test_8_no_store_no_handler(stage, face, fault):
    stage.plan(when(lambda ask: True, fault._replace(seconds=1.0, sleep=stage.clock.advance)))
    with pytest.raises(onceward.StoreError) as raised:
        face.run(stage.once(), 1, stage.handler())
    assert stage.runs == []
    assert raised.value.transient or len(stage.store.asked) == 1  # an error for good is not tried again


def test_9_a_failed_handler_gives_the_key_back_and_counts_until_it_is_parked(stage, face):
    once, fences = stage.once(max_attempts=3), []
    for attempt, status in ((1, RELEASED), (2, RELEASED), (3, PARKED)):
        with pytest.raises(ValueError, match="boom"):
            face.run(once, 1, stage.handler(error=ValueError("boom")))
        held = stage.record
        assert (held.status, held.attempts, held.error) == (status, attempt, "ValueError: boom")
        fences.append(held.fence)
    assert fences == sorted(set(fences))
    with pytest.raises(onceward.Parked) as caught:
        face.run(once, 1, stage.handler())
    assert (caught.value.attempts, caught.value.last_error) == (3, "ValueError: boom")
    once.ledger.unpark(stage.record.key)
    assert once.run(1, stage.handler()) == "result"
    assert (stage.record.attempts, len(stage.runs)) == (1, 4)


@pytest.mark.parametrize(
    "interrupt",
    [KeyboardInterrupt(), GeneratorExit(), BaseExceptionGroup("x", [KeyboardInterrupt()]), asyncio.CancelledError()],
    ids=lambda error: type(error).__name__,
)
def test_9_an_interrupted_or_cancelled_handler_leaves_the_key_claimed(stage, face, interrupt):
    with pytest.raises(type(interrupt)):
        face.run(stage.once(), 1, stage.handler(error=interrupt))
    assert stage.record.status == IN_PROGRESS
    with pytest.raises(onceward.Busy):
        stage.once().run(1, stage.handler())
    stage.clock.advance(61.0)
    assert stage.once().run(1, stage.handler()) == "result"
    assert stage.record.attempts == 2


class SoftTimeLimit(Exception):
    """As Celery's SoftTimeLimitExceeded and RQ's JobTimeoutException: raised from outside, at any moment."""


INTERRUPTS = (KeyboardInterrupt, SystemExit, SoftTimeLimit)
FAULTS = [fail_before(KeyboardInterrupt), fail_after(SystemExit), fail_after(SoftTimeLimit)]


@pytest.mark.parametrize("fault", FAULTS)
def test_an_interrupted_claim_gives_the_key_back_without_counting_attempt(stage, fault):
    stage.fail_next(fault)
    with pytest.raises(INTERRUPTS):
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


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("error", "status"), [(None, COMPLETED), (ValueError("boom"), RELEASED)])
def test_an_interrupted_settle_still_records(stage, fault, error, status):
    stage.plan(when(settling, fault, times=1))
    with pytest.raises(INTERRUPTS) as raised:
        stage.once().run(1, stage.handler(error=error))
    assert raised.value.__context__ is error
    assert (stage.record.status, stage.record.result) == (status, None if error else '"result"')


def test_who_interrupts_a_settle_twice_means_it_and_is_told(stage):
    stage.plan(when(settling, fail_before(KeyboardInterrupt)))
    with pytest.raises(KeyboardInterrupt) as raised:
        stage.once().run(1, stage.handler())
    assert sum(settling(ask) for ask in stage.store.asked) == 2
    assert any("was not recorded here" in note for note in raised.value.__notes__)


class Stalls(MemoryStore):
    """Cancels who sent the request of that number, after its write."""

    def __init__(self, number) -> None:
        super().__init__()
        self.left = number

    async def exchange_async(self, request):
        reply = self.exchange(request)
        self.left -= 1
        if not self.left:
            asyncio.current_task().cancel()
            await asyncio.sleep(3600)
        return reply


@each(("number", "status", "attempts"), [(1, RELEASED, 0), (2, COMPLETED, 1)])
def test_a_cancelled_claim_is_given_back_and_cancelled_settle_is_recorded(number, status, attempts):
    async def handle():
        return "result"

    once = onceward.Once(Stalls(number))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(once.run_async(1, handle))
    ((record, _),) = once.ledger.records()
    assert (record.status, record.attempts) == (status, attempts)


def test_10_a_missing_key_or_another_fingerprint_is_an_error_and_nothing_runs(stage):
    @stage.once()(key="[shop, order.id]", fingerprint="order.amount", name="charge")
    def charge(shop, order):
        stage.runs.append(order)
        return order["amount"]

    for order in ({}, {"id": None}, {"id": ""}, None, {"id": []}):
        with pytest.raises(onceward.KeyMissing):
            charge("shop", order)
    assert (stage.runs, stage.store.asked) == ([], [])
    assert charge("shop", {"id": 1, "amount": 5}) == charge("shop", {"id": 1, "amount": 5}) == 5
    with pytest.raises(onceward.Mismatch):
        charge("shop", {"id": 1, "amount": 6})
    assert len(stage.runs) == 1
    assert stage.once()(key="[shop, order.id]", name="charge")(lambda shop, order: 0)("shop", {"id": 1}) == 5


def test_a_heartbeat_reply_that_comes_after_the_end_does_not_undo_it(stage):
    claim = stage.once().acquire("k")
    beat = stage.beat(claim.record)
    claim.complete("result")
    claim.renewed(beat)  # the heartbeat thread gets its turn only now
    assert (claim.record.status, claim.record.result) == (COMPLETED, '"result"')


class Struck:
    """A store whose requests are interrupted."""

    def exchange(self, request):
        raise KeyboardInterrupt

    async def exchange_async(self, request):
        raise KeyboardInterrupt


@each("mode", ["sync", "async"])
@each("more", [False, True])
def test_an_interrupt_closes_the_steps_also_if_they_yield_once_more(mode, more):
    told = []

    def steps():
        try:
            yield "request"
        except Exception:
            told.append("seen")
        finally:
            told.append("closed")
            if more:
                yield "give it back"  # a store of the user's can do that

    with pytest.raises(KeyboardInterrupt) as kept:
        drive(steps(), Struck()) if mode == "sync" else asyncio.run(drive_async(steps(), Struck()))
    assert told == ["closed"]
    assert kept.value.__traceback__ is not None


def test_a_claim_asks_for_two_seconds_from_the_first_failure_on_also_after_a_wait(stage):
    began = stage.clock()
    stage.plan(when(lambda ask: not 2.1 <= stage.clock() - began <= 7, fail_before()))
    with pytest.raises(onceward.StoreError):
        stage.claim()
    assert 2.0 <= stage.clock() - began < 2.1
    stage.clock.advance(0.1)
    stage.claim("theirs", onceward.Policy(lease=60))
    stage.plan(when(lambda ask: 5 <= stage.clock() - began < 6.9, fail_before()))
    assert stage.claim("mine", onceward.Policy(on_busy=100.0)).record.owner == "mine"
