"""The fault injector does what its plan says, and the manual clock moves by hand only."""

import asyncio

import pytest

from onceward import StoreError
from onceward.core.drivers import drive, drive_async
from onceward.stores.memory import MemoryStore
from onceward.testing import Faults, ManualClock
from onceward.testing.bench import claim_of, next_of
from onceward.testing.faults import at, delay, fail_after, fail_before, late, randomly, settling, twice, when


@pytest.fixture(params=["sync", "async"])
def do(request):
    if request.param == "sync":
        return drive
    return lambda steps, store: asyncio.run(drive_async(steps, store))


@pytest.fixture
def memory():
    return MemoryStore(ManualClock())


def test_a_failure_before_the_write_leaves_nothing(do, memory):
    store = Faults(memory, at({1: fail_before()}))
    with pytest.raises(StoreError, match=r"exchange 1 .insert. failed") as caught:
        do(store.insert(claim_of()), store)
    assert caught.value.transient
    assert memory.records == {}


def test_a_failure_after_the_write_leaves_the_write(do, memory):
    store = Faults(memory, at({1: fail_after()}))
    with pytest.raises(StoreError, match=r"reply to exchange 1 .insert. was lost"):
        do(store.insert(claim_of()), store)
    assert list(memory.records) == ["key"]


def test_a_request_sent_twice_gets_the_second_reply(do, memory):
    store = Faults(memory, at({1: twice()}))
    reply = do(store.insert(claim_of()), store)
    assert not reply.won
    assert reply.record == memory.records["key"]


def test_a_late_request_arrives_before_a_later_exchange(do, memory):
    store = Faults(memory, at({1: late(after=2)}))
    with pytest.raises(StoreError):
        do(store.insert(claim_of()), store)
    assert do(store.load("key"), store).record is None
    assert do(store.load("key"), store).record is not None


def test_a_delay_may_be_the_manual_clocks(do):
    clock = ManualClock()
    store = Faults(MemoryStore(clock), at({1: delay(30.0, clock.advance)}))
    before = clock()
    assert do(store.insert(claim_of()), store).record.created_at == before + 30.0


def test_a_plan_may_pick_by_what_is_asked(do, memory):
    store = Faults(memory, when(settling, fail_before(), times=1))
    held = do(store.insert(claim_of()), store).record
    held = do(store.swap(next_of(held), held), store).record
    end = next_of(held, status="COMPLETED")
    (failed,) = do(store.swap_many([(end, held)]), store)
    assert isinstance(failed, StoreError), "in the place of its reply"
    assert do(store.swap(end, held), store).won
    assert [ask.verb for ask in store.asked] == ["insert", "swap", "swap_many", "swap"]
    assert [ask.number for ask in store.asked] == [1, 2, 3, 4]


def test_random_plans_repeat_with_their_seed(memory):
    def faults(seed):
        plan = randomly(seed, 0.5)
        return [(fault := plan(None)) and fault.kind for _ in range(100)]

    assert faults(1) == faults(1) != faults(2)
    assert 20 < sum(fault is not None for fault in faults(1)) < 80
