"""Checkpoints whose flush, block, lease or ledger fails. In both forms."""

import asyncio

import pytest

from faults.injected import Faults, at, fail_after, fail_before, randomly, settling, when
from faults.processes import PATIENCE
from fixtures import closing_fixture
from onceward import LeaseLost, Once, OncewardError, ResultNotRecorded, StoreError
from onceward.batch.checkpoint.awaiting import AsyncCheckpoint
from onceward.batch.checkpoint.blocking import Checkpoint
from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED
from onceward.stores.memory import MemoryStore
from onceward.testing.clock import ManualClock
from queues.checkpoints import NAME, Awaiting, Blocking, Refused, Sink, filled, items, statuses
from tables import each

pytestmark = pytest.mark.sampled(form=1, seed=3)


form = closing_fixture(lambda request: request.param(), params=[Blocking, Awaiting])


def attempts(once):
    return {record.attempts for record, _ in once.ledger.records()}


def test_a_failing_flush_gives_all_back_counts_an_attempt_and_raises(once, sink, form):
    sink.error = Refused("no")
    with pytest.raises(Refused):
        filled(form, once, sink, 1, 2, 3)
    assert statuses(once) == dict.fromkeys("123", RELEASED)
    assert attempts(once) == {1}
    assert {record.error for record, _ in once.ledger.records()} == {"Refused: no"}
    assert sink.done == []
    sink.error = None
    assert filled(form, once, sink, 1, 2, 3) == ["added"] * 3
    assert sink.flushes == [items(1, 2, 3)]
    assert attempts(once) == {2}


def test_after_a_failure_nothing_is_claimed_any_more(once, sink, form):
    sink.error = Refused("no")
    with pytest.raises(OncewardError, match="failed before") as caught:
        with form.open(once, sink, count=2) as checkpoint:
            checkpoint.add({"id": 1})
            with pytest.raises(Refused):
                checkpoint.add({"id": 2})
            sink.error = None
            with pytest.raises(OncewardError, match="failed before"):
                checkpoint.add({"id": 3})
            with pytest.raises(OncewardError, match="failed before"):
                checkpoint.flush()
    assert isinstance(caught.value.__cause__, Refused)
    assert statuses(once) == {"1": RELEASED, "2": RELEASED}
    assert sink.flushes == []


@pytest.mark.parametrize("kind", [ZeroDivisionError, KeyboardInterrupt, asyncio.CancelledError])
def test_an_error_in_the_block_gives_all_back_and_counts_no_attempt(once, sink, form, kind):
    with pytest.raises(kind):
        with form.open(once, sink) as checkpoint:
            checkpoint.add({"id": 1})
            checkpoint.add({"id": 2})
            raise kind
    assert statuses(once) == {"1": RELEASED, "2": RELEASED}
    assert attempts(once) == {0}
    assert sink.flushes == []
    assert filled(form, once, sink, 1) == ["added"]


def test_when_they_cannot_be_given_back_error_of_block_goes_on_with_note(sink, form):
    once = Once(Faults(MemoryStore(), when(settling, fail_before(StoreError))))
    with pytest.raises(ZeroDivisionError) as caught:
        with form.open(once, sink) as checkpoint:
            checkpoint.add({"id": 1})
            raise ZeroDivisionError
    assert "given back" in caught.value.__notes__[0]


@each("kind", [Blocking, Awaiting])  # both, whatever else is sampled: each form has its own line for it
def test_when_claim_was_lost_nothing_is_flushed_and_others_are_given_back(kind):
    clock, form, sink = ManualClock(), kind(), Sink()
    once = Once(MemoryStore(clock), clock=clock)
    with pytest.raises(LeaseLost, match="sink:1"):
        with form.open(once, sink) as checkpoint:
            checkpoint.add({"id": 1})
            clock.advance(40)
            checkpoint.add({"id": 2})
            clock.advance(40)
            rival = once.acquire(1, name=NAME)
    assert sink.flushes == []
    assert statuses(once) == {"1": IN_PROGRESS, "2": RELEASED}
    assert rival.attempt == 2
    rival.complete()
    form.close()


def test_claims_lost_while_flush_runs_are_told_and_others_are_recorded(sink, form):
    clock = ManualClock()
    once = Once(MemoryStore(clock), clock=clock)
    rival = []

    def during():
        clock.advance(40)
        rival.append(once.acquire(1, name=NAME))

    with pytest.raises(LeaseLost, match="sink:1"):
        with form.open(once, sink) as checkpoint:
            checkpoint.add({"id": 1})
            clock.advance(30)
            checkpoint.add({"id": 2})
            sink.during = during
    assert sink.flushes == [items(1, 2)]
    assert sink.done == items(2)
    assert statuses(once) == {"1": IN_PROGRESS, "2": COMPLETED}
    rival[0].complete("theirs")


@pytest.mark.parametrize(("fault", "error"), [(StoreError, ResultNotRecorded), (KeyboardInterrupt, KeyboardInterrupt)])
def test_after_a_flush_that_could_not_be_recorded_nothing_more_is_claimed(sink, form, fault, error):
    once = Once(Faults(MemoryStore(), when(settling, fail_before(fault))))
    with pytest.raises(OncewardError, match="failed before"):
        with form.open(once, sink) as checkpoint:
            checkpoint.add({"id": 1})
            with pytest.raises(error):
                checkpoint.flush()
            with pytest.raises(OncewardError, match="failed before"):
                checkpoint.add({"id": 2})
    assert (sink.flushes, statuses(once)) == ([items(1)], {"1": IN_PROGRESS})


def test_one_key_that_the_store_refuses_to_record_harms_no_other(sink, form):
    refuses = lambda ask: settling(ask) and any(write.key == "sink:2" for write in ask.writes)
    once = Once(Faults(MemoryStore(), when(refuses, fail_before(StoreError))))
    with pytest.raises(ResultNotRecorded, match="sink:2"):
        filled(form, once, sink, 1, 2, 3)
    assert statuses(once) == {"1": COMPLETED, "2": IN_PROGRESS, "3": COMPLETED}
    assert sink.done == items(1, 3)


@pytest.mark.parametrize("fault", [fail_before(), fail_after()], ids=lambda fault: fault.kind.name)
def test_one_fault_anywhere_changes_nothing(form, fault):
    for number in range(1, 6):
        once, sink = Once(Faults(MemoryStore(), at({number: fault}))), Sink()
        filled(form, once, sink, 1, 2, 3, count=2)
        assert sink.flushes == [items(1, 2), items(3)]
        assert len(once.store.asked) > number
        assert statuses(once) == dict.fromkeys("123", COMPLETED)


@pytest.mark.parametrize("seed", range(8))
def test_faults_at_random_neither_lose_nor_double_anything(sink, form, seed):
    once = Once(Faults(MemoryStore(), randomly(seed, 0.25)))
    for _ in range(2):
        answers = filled(form, once, sink, *range(10), count=3)
    once.store.plan = lambda ask: None
    assert sorted(item["id"] for flush in sink.flushes for item in flush) == list(range(10))
    assert sorted(item["id"] for item in sink.done) == list(range(10))
    assert answers == ["replayed"] * 10
    assert statuses(once) == {str(number): COMPLETED for number in range(10)}


def test_what_on_done_raises_is_logged_and_changes_nothing(once, sink, form, caplog):
    def fails(items):
        raise Refused("ack")

    filled(form, once, sink, 1, on_done=fails)
    assert statuses(once) == {"1": COMPLETED}
    assert "on_done of a checkpoint raised" in caplog.text
    assert "Refused: ack" in caplog.text


@pytest.mark.parametrize("kind", [KeyboardInterrupt, asyncio.CancelledError])
def test_an_interrupted_flush_leaves_its_keys_claimed_to_the_end_of_their_leases(once, sink, form, kind):
    def interrupt():
        raise kind

    sink.during = interrupt
    with pytest.raises(kind) as caught:  # which keeps the claims alive
        filled(form, once, sink, 1, lease=0.5)
    assert statuses(once) == {"1": IN_PROGRESS}
    assert once.acquire(1, name=NAME, on_busy=PATIENCE).attempt == 2
    assert caught.value is not None


def test_an_interrupt_while_a_key_is_claimed_gives_everything_back(sink, form):
    store = Faults(MemoryStore(), lambda ask: None)
    once = Once(store)
    with pytest.raises(KeyboardInterrupt):
        with form.open(once, sink) as checkpoint:
            checkpoint.add({"id": 1})
            store.plan = at({len(store.asked) + 1: fail_after(KeyboardInterrupt)})
            checkpoint.add({"id": 2})
    assert statuses(once) == {"1": RELEASED, "2": RELEASED}
    assert attempts(once) == {0}


@pytest.mark.parametrize("awaited", [False, True])
def test_claims_are_not_renewed_after_an_interrupt_before_the_last_flush(sink, monkeypatch, awaited):
    def interrupted(_):
        raise KeyboardInterrupt

    for kind in (Checkpoint, AsyncCheckpoint):
        monkeypatch.setattr(kind, "_flush", interrupted)
    once, form = Once("memory:", name=NAME, lease=0.3), Awaiting() if awaited else Blocking()
    with pytest.raises(KeyboardInterrupt):
        filled(form, once, sink, 1)
    assert once.acquire(1, on_busy=PATIENCE / 2).attempt == 2
    form.close()


async def test_a_plain_flush_that_raises_stop_iteration_does_not_hang_its_block(once):
    block = once.checkpoint(lambda items: next(iter(())), key="item.id", name="sink")
    with pytest.raises(RuntimeError, match="StopIteration"):
        async with asyncio.timeout(PATIENCE), block as sink:
            await sink.add({"id": "a"})
    assert once.store.records["sink:a"].status == RELEASED
