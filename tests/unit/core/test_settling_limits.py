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
from timing import within

pytestmark = pytest.mark.sampled(form=2)

LEASE = 0.45  # seconds; heartbeats renew it thrice in that time


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    """Pauses between tries that fit so short a lease, as a second fits one of a minute."""
    for module in (retries, many):
        monkeypatch.setattr(module, "LONGEST_PAUSE", 0.05)


def throttled(message):
    return StoreError(f"throttled: {message}", transient=True)


def has_result(ask):
    return any(write.result is not None for write in ask.writes)


def too_large():
    """A ledger on which every heartbeat passes, and no write with a result."""
    return Faults(MemoryStore(), when(lambda ask: settling(ask) and has_result(ask), fail_before(throttled)))


def no_end():
    """A ledger on which every heartbeat passes, and no claim ends."""
    return Faults(MemoryStore(), when(settling, fail_before(throttled)))


def handle(key="k"):
    return {"much": "x" * 10}


async def handle_async(key="k"):
    return handle()


def fails(key="k"):
    raise ZeroDivisionError


def call(once, form, function=handle):
    if form == "run":
        return once.run("k", function)
    if form == "run_async":
        return asyncio.run(once.run_async("k", handle_async if function is handle else function))
    if form == "complete":
        with once.claim("k", name="n") as claim:
            return claim.complete(function())
    if form == "checkpoint":
        with once.checkpoint(lambda items: function(), key=str, name="n") as sink:
            sink.add("k")
            sink.add("l")
        return None
    (outcome, _) = once.batch(function, key="key", name="n").run(["k", "l"])
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


@pytest.mark.filterwarnings("ignore::onceward.ResultWarning")
@pytest.mark.parametrize("form", ["run", "run_async", "complete", "batch"])
def test_after_one_lease_a_key_completes_without_its_result(form):
    def act(_):
        store = too_large()
        call(Once(store, name="n", lease=LEASE), form)
        return store

    store = within(LEASE * 1.9, act, least=LEASE * 0.5)
    assert {(record.status, record.result) for record in store.store.records.values()} == {(COMPLETED, None)}
    with pytest.raises(ResultUnavailable, match=r"throttled|within one lease"):
        Once(store, name="n").run("k", pytest.fail)


@pytest.mark.parametrize("form", ["run", "run_async", "complete", "batch", "checkpoint"])
def test_after_two_leases_the_caller_is_told_that_it_was_not_recorded(form):
    def act(_):
        store = no_end()
        with pytest.raises(ResultNotRecorded, match="throttled"):
            call(Once(store, name="n", lease=LEASE), form)
        return store

    store = within(LEASE * 3, act, least=LEASE * 1.3)
    assert {record.status for record in store.store.records.values()} == {IN_PROGRESS}


@pytest.mark.parametrize("form", ["run", "run_async", "complete", "batch"])
def test_a_store_that_is_away_for_longer_than_a_lease_has_the_result_when_it_is_back(form):
    def act(_):
        ended = []

        def fault(ask):
            ended.extend([boottime()] if settling(ask) and not ended else [])
            is_away = ended and ask.verb != "load" and boottime() < ended[0] + LEASE * 1.4
            return fail_before(throttled) if is_away else None

        store = Faults(MemoryStore(), fault)
        once = Once(store, name="n", lease=LEASE)
        call(once, form)
        return store, once

    store, once = within(LEASE * 1.7, act, least=LEASE * 1.3)
    assert {record.status for record in store.store.records.values()} == {COMPLETED}
    assert once.run("k", pytest.fail) == {"much": "x" * 10}


@pytest.mark.parametrize("form", ["run", "run_async", "task_group"])
def test_a_key_completed_in_vain_is_not_given_back_for_another_run(form):
    left = [fail_before(StoreError)] * 3
    store = Faults(MemoryStore(), lambda ask: left.pop() if left and settling(ask) else None)
    once = Once(store, name="n")

    def completes():
        current().complete("done")

    async def completes_async():
        await current().complete_async("done")

    async def groups():
        async with asyncio.TaskGroup() as group:
            group.create_task(completes_async())

    with pytest.raises(ExceptionGroup if form == "task_group" else ResultNotRecorded):
        if form == "run":
            once.run("k", completes)
        else:
            asyncio.run(once.run_async("k", completes_async if form == "run_async" else groups))
    assert [record.status for record in store.store.records.values()] == [IN_PROGRESS]


@pytest.mark.parametrize("form", ["acquire", "acquire_async", "step"])
def test_a_success_in_vain_is_not_released_for_another_run_but_can_be_parked(form):
    left = [fail_before(StoreError)] * 3
    store = Faults(MemoryStore(), lambda ask: left.pop() if left and ask.verb == "swap" else None)
    once = Once(store, name="n")
    claim = once.acquire("k")

    async def ends_async():
        try:
            await claim.complete_async("done")
        except ResultNotRecorded as error:
            await claim.release_async(str(error))

    with pytest.raises(OncewardError, match="cannot release it"):
        if form == "acquire_async":
            asyncio.run(ends_async())
        try:
            claim.complete("done") if form == "acquire" else claim.step("charge", list)
        except (ResultNotRecorded, StepNotRecorded) as error:  # as in a handler of all errors
            claim.release(str(error))
    assert claim.lost
    assert [record.status for record in store.store.records.values()] == [IN_PROGRESS]
    left.clear()
    claim.park("somebody must look")
    assert [record.status for record in store.store.records.values()] == [PARKED]


@pytest.mark.parametrize("form", ["run", "run_async", "batch", "checkpoint", "release", "park"])
def test_a_failure_is_not_tried_to_be_recorded_for_longer(form):
    def act(_):
        with pytest.raises(ZeroDivisionError) as raised:
            call(Once(no_end(), name="n", lease=LEASE), form, fails)
        assert any("throttled" in note for note in raised.value.__notes__)

    def by_hand(_):
        with pytest.raises(StoreError, match="throttled"), Once(no_end(), name="n", lease=LEASE).claim("k") as claim:
            try:
                getattr(claim, form)()
            finally:
                claim.let_go()
                claim.settled = "given up"

    within(LEASE * 3, by_hand if form in {"release", "park"} else act, least=LEASE * 1.3)
