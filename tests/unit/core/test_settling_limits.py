"""How long a handler's end is tried to be recorded: a lease, and one more without the result, whatever heartbeats do."""

import asyncio

import pytest

from onceward import Once, OncewardError, ResultNotRecorded, ResultUnavailable, StepNotRecorded, current
from onceward.core import many, retries
from onceward.core.clock import boottime
from onceward.core.record import COMPLETED, IN_PROGRESS, PARKED
from onceward.errors import StoreError
from onceward.stores.memory import MemoryStore
from onceward.testing.faults import Faults, fail_before, settling, when
from queues.batches import called
from tables import each
from waiting import within

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
