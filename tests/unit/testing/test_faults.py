"""The fault injector does what its plan says, and the manual clock moves by hand only."""

import pytest

from faults.injected import Faults, at, fail_after, fail_before, late, settling, twice, when
from onceward import StoreError
from onceward.core.drivers import drive
from onceward.stores.memory import MemoryStore
from onceward.testing import ManualClock
from onceward.testing.bench import claim_of, next_of


@pytest.fixture
def memory():
    return MemoryStore(ManualClock())


def test_a_failure_before_the_write_leaves_nothing(memory):
    store = Faults(memory, at({1: fail_before()}))
    with pytest.raises(StoreError, match=r"exchange 1 .insert. failed") as caught:
        drive(store.insert(claim_of()), store)
    assert caught.value.transient
    assert memory.records == {}


def test_a_failure_after_the_write_leaves_the_write(memory):
    store = Faults(memory, at({1: fail_after()}))
    with pytest.raises(StoreError, match=r"reply to exchange 1 .insert. was lost"):
        drive(store.insert(claim_of()), store)
    assert list(memory.records) == ["key"]


def test_a_request_sent_twice_gets_the_second_reply(memory):
    store = Faults(memory, at({1: twice()}))
    reply = drive(store.insert(claim_of()), store)
    assert not reply.won
    assert reply.record == memory.records["key"]


def test_a_late_request_arrives_before_a_later_exchange(memory):
    store = Faults(memory, at({1: late(after=2)}))
    with pytest.raises(StoreError):
        drive(store.insert(claim_of()), store)
    assert drive(store.load("key"), store).record is None
    assert drive(store.load("key"), store).record is not None


def test_a_plan_may_pick_by_what_is_asked(memory):
    store = Faults(memory, when(settling, fail_before(), times=1))
    held = drive(store.insert(claim_of()), store).record
    held = drive(store.swap(next_of(held), held), store).record
    end = next_of(held, status="COMPLETED")
    (failed,) = drive(store.swap_many([(end, held)]), store)
    assert isinstance(failed, StoreError), "in the place of its reply"
    assert drive(store.swap(end, held), store).won
    assert [ask.verb for ask in store.asked] == ["insert", "swap", "swap_many", "swap"]
    assert [ask.number for ask in store.asked] == [1, 2, 3, 4]
