"""A handler that is called, and returns what should be awaited or iterated over."""

import asyncio

import pytest

from onceward import Once, ResultUnavailable, ResultWarning
from onceward.core.record import COMPLETED, RELEASED
from onceward.stores.memory import MemoryStore

pytestmark = pytest.mark.sampled(form=1)

effects = []


async def work():
    effects.append("late")
    return "done"


def a_coroutine(key="k"):
    effects.append("effect")
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


def a_started_coroutine(key="k"):
    effects.append("effect")
    waiting = waits()
    waiting.send(None)
    kept.append(waiting)
    return waiting


kept = []


async def waits():
    await Awaitable()


@pytest.fixture(autouse=True)
def fresh():
    effects.clear()
    kept.clear()
    Awaitable.closed = False


def without_arguments(handle):
    def job():
        return handle()

    return job


def call(store, form, handle, **options):
    """Call ``handle`` under a guard, and return what it is answered, or raises."""
    once = Once(store, name="n", **options)
    if form == "run":
        return once.run("k", handle)
    if form == "per":
        return once.per("1h", at=0)(without_arguments(handle))()
    if form == "checkpoint":
        with once.checkpoint(lambda items: handle(), key=str, name="n") as sink:
            sink.add("k")
        return None
    batch = once.batch(handle, key="key", name="n")
    if form == "batch":
        (outcome,) = batch.run(["k"])
    else:
        batch.is_async = False
        (outcome,) = asyncio.run(batch.run_async(["k"]))
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("handle", [a_coroutine, a_generator], ids=lambda handle: handle.__name__)
@pytest.mark.parametrize("form", ["run", "per", "batch", "checkpoint"])
def test_a_body_that_has_not_begun_is_closed_and_its_key_given_back(form, handle):
    store = MemoryStore()
    with pytest.raises(TypeError, match="Its body has not run, so the key is given back"):
        call(store, form, handle, final=(TypeError,))  # it is no outcome, either
    assert [record.status for record in store.records.values()] == [RELEASED]
    assert "late" not in effects


@pytest.mark.parametrize("handle", [a_generator, an_async_generator], ids=lambda handle: handle.__name__)
def test_a_generator_is_refused_where_coroutines_are_awaited_too(handle):
    store = MemoryStore()
    with pytest.raises(TypeError, match="generator"):
        asyncio.run(Once(store, name="n").run_async("k", handle))
    assert [record.status for record in store.records.values()] == [RELEASED]
    with pytest.raises(TypeError, match="generator"):
        call(store, "threads", handle)
    assert [record.status for record in store.records.values()] == [RELEASED]


@pytest.mark.parametrize("handle", [an_awaitable, a_started_coroutine], ids=lambda h: h.__name__)
@pytest.mark.parametrize("form", ["run", "batch"])
def test_an_effect_that_was_made_is_completed_whatever_is_returned(form, handle):
    store = MemoryStore()
    with pytest.warns(ResultWarning):
        call(store, form, handle)
    assert [record.status for record in store.records.values()] == [COMPLETED]
    with pytest.raises(ResultUnavailable):
        call(store, form, handle)
    assert effects == ["effect"]
    assert not Awaitable.closed, "nothing of the user's is closed"
    for going in kept:
        assert going.cr_frame is not None
