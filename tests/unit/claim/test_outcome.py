"""What a guarded call came to: a run or a replay, its errors, and handlers that return what should be awaited or iterated over."""

import asyncio
import copy
import pickle

import pytest

import onceward
from onceward.core.record import COMPLETED, RELEASED
from onceward.stores.memory import MemoryStore
from queues.batches import called
from tables import each

pytestmark = pytest.mark.sampled(form=2)


@pytest.mark.parametrize("form", ["decorated", "decorated_async", "run", "run_async"])
def test_a_run_is_told_from_its_replay(once, form):
    failed = []

    def double(order):
        if not failed:
            failed.append(order)
            raise ValueError(order)
        return order * 2

    async def double_async(order):
        return double(order)

    named = once.using(name="double")
    call = {
        "decorated": named(key="order")(double).outcome,
        "decorated_async": lambda order: asyncio.run(named(key="order")(double_async).outcome(order)),
        "run": lambda order: named.run_outcome(order, double, order),
        "run_async": lambda order: asyncio.run(named.run_outcome_async(order, double_async, order)),
    }[form]
    with pytest.raises(ValueError, match="7"):
        call(7)
    first, second = call(7), call(7)
    assert (first.value, first.replayed, first.attempt) == (14, False, 2)
    assert (second.value, second.replayed, second.attempt) == (14, True, 2)
    ((record, _),) = once.ledger.records()
    assert first.recorded_at == second.recorded_at == record.updated_at >= record.created_at


def test_an_answer_from_memory_is_a_replay_too(once):
    guarded = once(key="order", cache=10, name="n")(lambda order: order)
    first, second = guarded.outcome(1), guarded.outcome(1)
    assert (first.replayed, second.replayed, second.attempt) == (False, True, 1)
    assert first.recorded_at == second.recorded_at


@each(
    "error",
    [
        onceward.Busy("k", 1.5),
        onceward.Parked("k", 3, "Failure: no"),
        onceward.Completed("k", {"a": 1}),
        onceward.LeaseLost("k", "complete"),
        onceward.ResultNotRecorded("k", [1], "the disk is full"),
        onceward.StoreError("x", transient=True),
    ],
)
def test_errors_can_be_copied_and_pickled(error):
    for again in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


effects = []


async def work():
    effects.append("late")


def a_coroutine(key="k"):
    return work()


def later():
    yield effects.append("late")


async def later_async():
    yield effects.append("late")


def a_generator(key="k"):  # a generator function itself is refused when it is guarded
    return later()


def an_async_generator(key="k"):
    return later_async()


class Awaitable:
    closed = False

    def __await__(self):
        yield

    def close(self):
        Awaitable.closed = True


def an_awaitable(key="k"):
    effects.append("effect")
    return Awaitable()


@pytest.fixture(autouse=True)
def fresh():
    effects.clear()


@pytest.mark.filterwarnings("error::RuntimeWarning")
@each(
    ("form", "handle"),
    [
        ("run", a_coroutine),
        ("run", a_generator),
        ("run_async", an_async_generator),
        ("batch", a_coroutine),
        ("checkpoint", a_coroutine),
    ],
)
def test_a_body_that_has_not_begun_is_closed_and_its_key_given_back(form, handle):
    store = MemoryStore()
    with pytest.raises(TypeError, match="Its body has not run, so the key is given back"):
        called(onceward.Once(store, name="n", final=(TypeError,)), form, handle)  # it is no outcome, either
    assert [record.status for record in store.records.values()] == [RELEASED]
    assert effects == []


@pytest.mark.parametrize("form", ["run", "batch"])
def test_an_effect_that_was_made_is_completed_whatever_is_returned(form):
    store = MemoryStore()
    with pytest.warns(onceward.ResultWarning):
        called(onceward.Once(store, name="n"), form, an_awaitable)
    assert [record.status for record in store.records.values()] == [COMPLETED]
    with pytest.raises(onceward.ResultUnavailable):
        called(onceward.Once(store, name="n"), form, an_awaitable)
    assert effects == ["effect"]
    assert not Awaitable.closed, "nothing of the user's is closed"
