"""A handler that is called, and returns what should be awaited or iterated over."""

import asyncio

import pytest

from onceward import Once, ResultUnavailable, ResultWarning
from onceward.core.record import COMPLETED, RELEASED
from onceward.stores.memory import MemoryStore
from tables import each

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


def call(store, form, handle, **options):
    """Call ``handle`` under a guard, and return what it is answered, or raises."""
    once = Once(store, name="n", **options)
    if form == "run":
        return once.run("k", handle)
    if form == "run_async":
        return asyncio.run(once.run_async("k", handle))
    if form == "checkpoint":
        with once.checkpoint(lambda items: handle(), key=str, name="n") as sink:
            sink.add("k")
        return None
    (outcome,) = once.batch(handle, key="key", name="n").run(["k"])
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


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
        call(store, form, handle, final=(TypeError,))  # it is no outcome, either
    assert [record.status for record in store.records.values()] == [RELEASED]
    assert effects == []


@pytest.mark.parametrize("form", ["run", "batch"])
def test_an_effect_that_was_made_is_completed_whatever_is_returned(form):
    store = MemoryStore()
    with pytest.warns(ResultWarning):
        call(store, form, an_awaitable)
    assert [record.status for record in store.records.values()] == [COMPLETED]
    with pytest.raises(ResultUnavailable):
        call(store, form, an_awaitable)
    assert effects == ["effect"]
    assert not Awaitable.closed, "nothing of the user's is closed"
