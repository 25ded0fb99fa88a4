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


def a_started_generator(key="k"):
    effects.append("effect")
    going = iterates()
    next(going)
    kept.append(going)
    return going


def iterates():
    yield 1
    yield 2


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
        call(store, form, handle)
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


def test_an_async_generator_that_a_function_returns_is_refused():
    with pytest.raises(TypeError, match="async generator"):
        call(MemoryStore(), "run", an_async_generator)


def test_what_was_not_begun_is_never_recorded_as_an_outcome():
    store = MemoryStore()
    with pytest.raises(TypeError):
        call(store, "run", a_coroutine, final=(TypeError,))
    assert [record.status for record in store.records.values()] == [RELEASED]


@pytest.mark.parametrize("handle", [an_awaitable, a_started_coroutine, a_started_generator], ids=lambda h: h.__name__)
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
        assert (going.cr_frame if hasattr(going, "cr_frame") else going.gi_frame) is not None


def test_a_future_is_completed_without_a_result():
    async def main():
        future = asyncio.get_running_loop().create_future()
        with pytest.warns(ResultWarning):
            assert Once(store, name="n").run("k", lambda: future) is future
        assert not future.cancelled()

    store = MemoryStore()
    asyncio.run(main())
    assert [record.status for record in store.records.values()] == [COMPLETED]
