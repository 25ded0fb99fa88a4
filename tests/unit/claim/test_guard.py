"""The forms of a guard, and what a handler may ask of its claim."""

import asyncio
import contextvars
import functools
import inspect
import threading
import time
from uuid import UUID

import pytest

from onceward import Busy, Claim, Completed, LeaseLost, Once, OncewardError, Reentrant, current
from onceward.claim import factory
from tables import each

pytestmark = pytest.mark.sampled(form=1)


def statuses(once):
    return [record.status for record in once.store.records.values()]


def test_methods_of_every_kind_are_guarded(once):
    class Service:
        @once(key="order")
        def method(self, order):
            return order

        @once(key="order")
        @classmethod
        def of_class(cls, order):
            return order

        @classmethod
        @once(key="order")
        def of_class_below(cls, order):
            return order

        @once(key="order")
        @staticmethod
        def static(order):
            return order

    for name in ("method", "of_class", "of_class_below", "static"):
        assert getattr(Service(), name)(1) == getattr(Service(), name)(1) == 1


class Callable:
    runs = 0

    def __call__(self, order):
        self.runs += 1
        return order


class AsyncCallable(Callable):
    async def __call__(self, order):
        return super().__call__(order)


def add(a, b):
    return a + b


def test_partials_and_callable_objects_are_guarded(once):
    guarded = once(key="b", name="add.one")(functools.partial(add, 1))
    assert guarded(2) == guarded(2) == 3
    thing, coroutine = Callable(), AsyncCallable()
    guarded = once(key="order")(thing)
    assert guarded(1) == guarded(1) == 1
    assert once.run("k", thing, 5) == once.run("k", thing, 6) == 5
    awaited = once(key="order")(coroutine)
    assert asyncio.run(awaited(1)) == asyncio.run(awaited(1)) == 1
    assert asyncio.run(once.run_async("k", coroutine, 5)) == 5
    assert (thing.runs, coroutine.runs) == (2, 2)


def test_a_coroutine_function_around_a_plain_function_is_awaited_with_its_signature(once):
    def inner(order: int, *, region: str = "eu", claim: Claim) -> int:
        """Say what it does."""
        return 1

    @functools.wraps(inner)
    async def outer(*args, **kwargs):
        return inner(*args, **kwargs)

    guarded = once(key="order")(outer)
    assert inspect.iscoroutinefunction(guarded)
    assert asyncio.run(guarded(1)) == asyncio.run(guarded(1)) == 1
    assert (guarded.__name__, guarded.__doc__, guarded.__module__) == ("inner", "Say what it does.", __name__)
    assert str(inspect.signature(guarded)) == "(order: int, *, region: str = 'eu') -> int"
    assert guarded.__wrapped__ is outer


def test_run_refuses_a_coroutine_function_and_what_turns_out_to_be_one(once):
    async def handle():
        return 1

    def late():
        return handle()

    for function in (handle, functools.partial(handle), AsyncCallable()):
        with pytest.raises(TypeError, match="run_async"):
            once.run("k", function)
    assert once.store.records == {}
    with pytest.raises(TypeError):
        once.run("k", late)
    assert "COMPLETED" not in statuses(once)
    assert asyncio.run(once.run_async("k", late)) == 1


async def test_a_with_block_runs_once(once):
    with once.claim("k") as claim:
        claim.complete({"a": 1})
    with pytest.raises(Completed) as done, once.claim("k"):
        pytest.fail("it ran")
    assert done.value.result == {"a": 1}

    async with once.claim("async") as claim:
        await claim.complete_async(5)
    with pytest.raises(Completed) as done:
        async with once.claim("async"):
            pytest.fail("it ran")
    assert done.value.result == 5
    assert statuses(once) == ["COMPLETED"] * 2


@pytest.mark.parametrize(("ending", "status"), [("complete", "COMPLETED"), ("release", "RELEASED"), ("park", "PARKED")])
async def test_bare_claims_end_as_they_are_told(once, ending, status):
    claim = once.acquire("k")
    assert statuses(once) == ["IN_PROGRESS"]
    getattr(claim, ending)()
    for again in ("complete", "release", "park", "extend"):
        with pytest.raises(OncewardError, match="ended before"):
            getattr(claim, again)()
    claim = await once.acquire_async("other")
    await claim.extend_async()
    await getattr(claim, f"{ending}_async")()
    assert statuses(once) == [status] * 2


def test_extend_renews_the_lease_and_nothing_else_does_for_a_bare_claim(once, clock):
    claim = once.acquire("k", lease=10)
    for seconds in (0, -1, 1e11, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="extend"):
            claim.extend(seconds)
    clock.advance(9)
    claim.extend(30)
    claim.extend(5)  # which shortens nothing
    assert 29 < claim.remaining <= 30
    clock.advance(29)
    with pytest.raises(Busy):
        once.acquire("k")
    clock.advance(2)
    assert claim.lost
    assert once.acquire("k").attempt == 2
    with pytest.raises(LeaseLost, match="extend"):
        claim.extend()


def test_current_is_the_claim_of_the_handler_that_runs_here(once):
    def outer():
        before, nested = current().record.key, once.run("k", inner)
        return before != nested and current().record.key == before

    def inner():
        return current().record.key

    assert once.run("k", outer)
    with pytest.raises(OncewardError, match="no claim"):
        current()


def test_a_context_that_outlives_a_handler_does_not_have_its_claim(once):
    contexts = []

    def handle():
        contexts.append(contextvars.copy_context())
        assert contexts[-1].run(lambda: current().record.key)

    async def handle_async():
        handle()

    once.run("a", handle)
    asyncio.run(once.run_async("b", handle_async))
    with once.claim("c"):
        handle()
    for number, context in enumerate(contexts):
        with pytest.raises(OncewardError, match="no claim"):
            context.run(current)
        assert context.run(once.acquire, number).outer is None


def test_the_end_of_a_block_leaves_a_later_one_current(once):
    first, second = once.claim("a"), once.claim("b")
    for enter in (first, second):
        enter.__enter__()
    first.__exit__(None, None, None)
    assert current().record.key.endswith(":b")
    second.__exit__(None, None, None)
    with pytest.raises(OncewardError, match="no claim"):
        current()


def test_the_derived_key_is_same_on_every_attempt_and_another_for_others(once):
    keys = []

    def handle():
        claim = current()
        keys.append((claim.key("refund"), claim.key("refund", 1), claim.key(), claim.key("mail")))
        return 1 / (claim.attempt - 1)

    with pytest.raises(ZeroDivisionError):
        once.run("k", handle)
    once.run("k", handle)
    assert keys[0] == keys[1]
    assert all(str(UUID(key)) == key for key in keys[0])
    with pytest.raises(ZeroDivisionError):
        once.run("other", handle)
    assert len({*keys[0], *keys[2]}) == 8


@pytest.mark.parametrize("on_busy", ["raise", "skip", 30])
def test_a_handler_that_asks_for_its_own_key_is_told_at_once(once, on_busy):
    @once(key="n", on_busy=on_busy, name="n")
    def handle(n):
        with pytest.raises(Reentrant, match="n:1"):
            handle(n)
        if on_busy != "skip":
            with pytest.raises(Reentrant), once.claim(1, name="n", on_busy=on_busy):
                pass

    start = time.monotonic()
    handle(1)
    assert time.monotonic() - start < 25, "it waited for itself"


async def test_a_coroutine_that_asks_for_its_own_key_is_told_at_once_and_later_gets_the_result(once):
    later = []

    @once(key="n", on_busy=30)
    async def handle(n):
        later.append(asyncio.create_task(after()))
        for again in (handle(n), asyncio.create_task(handle(n))):
            with pytest.raises(Reentrant):
                await again
        return "ok"

    async def after():
        await asyncio.sleep(0.1)
        return await handle(1)

    async with asyncio.timeout(10):
        assert (await handle(1), await later[0]) == ("ok", "ok")


async def test_a_handler_runs_in_the_callers_thread_or_task_with_its_context(once):
    variable = contextvars.ContextVar("variable", default="unset")

    def handle():
        seen = (threading.get_ident(), variable.get())
        variable.set("by handler")
        return seen

    async def handle_async():
        return id(asyncio.current_task())

    variable.set("by caller")
    assert once.run("k", handle) == (threading.get_ident(), "by caller")
    assert variable.get() == "by handler"
    assert await once.run_async("k", handle_async) == id(asyncio.current_task())


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@each("error", [ValueError("\udcff"), ValueError("a\x00b"), ValueError("x" * 1_000_000), StopIteration(1), Mute()])
def test_any_exception_of_a_handler_comes_out_as_it_is_and_gives_key_back(tmp_path, error):
    once = Once(f"sqlite:///{tmp_path}/ledger.db", name="n")

    def handle():
        raise error

    with pytest.raises(BaseException) as raised:
        once.run("k", handle)
    assert raised.value is error
    assert not getattr(error, "__notes__", [])
    ((record, _),) = once.ledger.records()
    assert record.status == "RELEASED"
    assert type(error).__name__ in record.error
    assert len(record.error) <= 1000
    once.ledger.clear(record.key)
    once.close()


def test_a_handler_that_completed_and_then_raises_stays_completed(once):
    def handle():
        current().complete("told")
        raise LookupError

    with pytest.raises(LookupError):
        once.run("k", handle)
    assert once.run("k", handle) == "told"


def test_names_made_from_data_do_not_fill_the_memory(once, monkeypatch):
    monkeypatch.setattr(factory, "_NAMES", 3)
    for number in range(10):
        once.acquire("k", name=f"customer-{number}")
    assert len(once.guards._keyed) == 3
