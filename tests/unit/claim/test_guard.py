"""The forms of a guard, and what a handler may ask of its claim."""

import asyncio
import contextvars
import copy
import functools
import inspect
import pickle
import threading
import time
from uuid import UUID

import pytest

from onceward import (
    Busy,
    Claim,
    Completed,
    KeyMissing,
    LeaseLost,
    Mismatch,
    Once,
    OncewardError,
    Parked,
    Reentrant,
    ResultNotRecorded,
    ResultUnavailable,
    StoreError,
    current,
)
from onceward.stores.memory import MemoryStore
from tables import each

pytestmark = pytest.mark.sampled(call=1, form=1)


class Failure(Exception):
    pass


def statuses(once):
    return [record.status for record in once.store.records.values()]


# --- forms ------------------------------------------------------------------------------------------------------------


def test_a_function_runs_once_and_is_replayed(once):
    runs = []

    @once(key="order")
    def handle(order):
        runs.append(order)
        return {"order": order}

    assert handle(1) == handle(1) == handle(order=1) == {"order": 1}
    assert handle(2) == {"order": 2}
    assert runs == [1, 2]


def test_a_coroutine_function_runs_once_and_is_replayed(once):
    runs = []

    @once(key="order")
    async def handle(order):
        await asyncio.sleep(0)
        runs.append(order)
        return order

    async def main():
        assert await handle(1) == await handle(1) == 1

    assert inspect.iscoroutinefunction(handle)
    asyncio.run(main())
    assert runs == [1]


class Service:
    once = Once(MemoryStore())

    @once(key="order")
    def method(self, order):
        return [type(self).__name__, order]

    @once(key="order")
    async def method_async(self, order):
        return [type(self).__name__, order]

    @once(key="order")
    @classmethod
    def of_class(cls, order):
        return [cls.__name__, order]

    @classmethod
    @once(key="order")
    def of_class_below(cls, order):
        return [cls.__name__, order]

    @once(key="order")
    @staticmethod
    def static(order):
        return order

    @staticmethod
    @once(key="order")
    def static_below(order):
        return order


@each("name", ["method", "of_class", "of_class_below"])
def test_methods_and_classmethods_are_guarded(name):
    assert getattr(Service(), name)(1) == getattr(Service(), name)(1) == ["Service", 1]


@each("name", ["static", "static_below"])
def test_staticmethods_are_guarded(name):
    assert getattr(Service, name)(1) == getattr(Service(), name)(1) == 1


class Callable:
    def __init__(self):
        self.runs = 0

    def __call__(self, order):
        self.runs += 1
        return order


class AsyncCallable(Callable):
    async def __call__(self, order):
        self.runs += 1
        return order


def add(a, b):
    return a + b


def test_partials_and_callable_objects_are_guarded(once):
    guarded = once(key="b", name="add.one")(functools.partial(add, 1))
    assert guarded(2) == guarded(2) == 3
    thing = Callable()
    guarded = once(key="order")(thing)
    assert guarded(1) == guarded(1) == 1
    assert thing.runs == 1
    assert once.run("k", thing, 5) == once.run("k", thing, 6) == 5
    assert thing.runs == 2


def test_async_callable_objects_are_guarded(once):
    thing = AsyncCallable()
    guarded = once(key="order")(thing)
    assert asyncio.run(guarded(1)) == asyncio.run(guarded(1)) == 1
    assert asyncio.run(once.run_async("k", thing, 5)) == 5
    assert thing.runs == 2


def test_a_coroutine_function_around_a_plain_function_is_awaited(once):
    runs = []

    def inner(order):
        runs.append(order)
        return order

    @functools.wraps(inner)
    async def outer(order):
        return inner(order)

    guarded = once(key="order")(outer)
    assert asyncio.run(guarded(1)) == asyncio.run(guarded(1)) == 1
    assert runs == [1]


def test_the_decorated_function_keeps_its_metadata_and_signature(once):
    @once(key="order")
    def handle(order: dict, *, region: str = "eu", claim: Claim) -> int:
        """Say what it does."""
        return 1

    assert (handle.__name__, handle.__doc__, handle.__module__) == ("handle", "Say what it does.", __name__)
    assert str(inspect.signature(handle)) == "(order: dict, *, region: str = 'eu') -> int"
    assert handle.__wrapped__.__name__ == "handle"


def test_key_of_tells_the_key_in_the_ledger(once):
    @once(key="order.id", name="billing")
    def handle(order):
        return current().record.key

    assert handle.key_of({"id": 7}) == handle({"id": 7}) == "billing:7"
    with pytest.raises(KeyMissing):
        handle.key_of({})


def test_run_refuses_a_coroutine_function(once):
    async def handle():
        pass

    for function in (handle, functools.partial(handle), AsyncCallable()):
        with pytest.raises(TypeError, match="run_async"):
            once.run("k", function)
    assert once.store.records == {}


def test_run_refuses_what_turns_out_to_be_a_coroutine(once):
    async def inner():
        return 1

    def handle():
        return inner()

    with pytest.raises(TypeError):
        once.run("k", handle)
    assert "COMPLETED" not in statuses(once)
    assert asyncio.run(once.run_async("k", handle)) == 1


def test_a_with_block_runs_once(once):
    with once.claim("k") as claim:
        claim.complete({"a": 1})
    with pytest.raises(Completed) as done, once.claim("k"):
        pytest.fail("it ran")
    assert done.value.result == {"a": 1}


def test_a_with_block_that_raises_gives_the_key_back(once):
    with pytest.raises(Failure), once.claim("k"):
        raise Failure
    assert statuses(once) == ["RELEASED"]


@pytest.mark.parametrize("ending", ["release", "park"])
def test_a_with_block_may_end_its_claim_otherwise(once, ending):
    with once.claim("k") as claim:
        getattr(claim, ending)("because")
    (record,) = once.store.records.values()
    assert (record.status, record.error) == ({"release": "RELEASED", "park": "PARKED"}[ending], "because")


def test_an_async_with_block_runs_once(once):
    async def main():
        async with once.claim("k") as claim:
            await claim.complete_async(5)
        with pytest.raises(Completed) as done:
            async with once.claim("k"):
                pytest.fail("it ran")
        assert done.value.result == 5
        with pytest.raises(Failure):
            async with once.claim("other"):
                raise Failure

    asyncio.run(main())
    assert statuses(once) == ["COMPLETED", "RELEASED"]


@pytest.mark.parametrize(("ending", "status"), [("complete", "COMPLETED"), ("release", "RELEASED"), ("park", "PARKED")])
def test_bare_claims_end_as_they_are_told(once, ending, status):
    claim = once.acquire("k")
    assert statuses(once) == ["IN_PROGRESS"]
    getattr(claim, ending)()
    assert statuses(once) == [status]
    for again in ("complete", "release", "park", "extend"):
        with pytest.raises(OncewardError, match="ended before"):
            getattr(claim, again)()


@pytest.mark.parametrize(("ending", "status"), [("complete", "COMPLETED"), ("release", "RELEASED"), ("park", "PARKED")])
def test_bare_claims_end_as_they_are_told_in_coroutines(once, ending, status):
    async def main():
        claim = await once.acquire_async("k")
        await claim.extend_async()
        await getattr(claim, f"{ending}_async")()

    asyncio.run(main())
    assert statuses(once) == [status]


def test_extend_renews_the_lease_and_nothing_else_does_for_a_bare_claim(once, clock):
    claim = once.acquire("k", lease=10)
    clock.advance(9)
    claim.extend(30)
    assert 29 < claim.remaining <= 30
    clock.advance(29)
    with pytest.raises(Busy):
        once.acquire("k")
    clock.advance(2)
    assert claim.lost
    assert once.acquire("k").attempt == 2
    with pytest.raises(LeaseLost, match="extend"):
        claim.extend()


def test_extend_never_shortens_a_lease(once, clock):
    claim = once.acquire("k", lease=60)
    before = claim.record.lease_until
    claim.extend(5)
    assert claim.record.lease_until == before
    assert claim.remaining > 59
    clock.advance(58)
    with pytest.raises(Busy):
        once.acquire("k")
    claim.complete()


@pytest.mark.parametrize("seconds", [0, -1, 1e11, float("inf"), float("nan")])
def test_extend_refuses_what_is_no_time(once, seconds):
    with pytest.raises(ValueError, match="extend"):
        once.acquire("k").extend(seconds)


# --- the claim in the handler -------------------------------------------------------------------------------------------


def test_current_is_the_claim_of_the_handler_that_runs_here(once):
    def inner():
        return current().record.key

    def outer():
        before = current().record.key
        nested = once.run("k", inner)
        return [before, nested, current().record.key]

    keys = once.run("k", outer)
    assert keys[0] == keys[2] != keys[1]
    with pytest.raises(OncewardError, match="no claim"):
        current()


def test_the_derived_key_is_same_on_every_attempt_and_another_for_others(once):
    keys = []

    def handle():
        claim = current()
        keys.append((claim.key("refund"), claim.key("refund", 1), claim.key(), claim.key("mail")))
        if len(keys) < 3:
            raise Failure
        return claim.attempt

    for _ in range(2):
        with pytest.raises(Failure):
            once.run("k", handle)
    assert once.run("k", handle) == 3
    assert keys[0] == keys[1] == keys[2]
    assert len(set(keys[0])) == 4
    assert all(str(UUID(key)) == key for key in keys[0])
    once.run("other", handle)
    assert not set(keys[3]) & set(keys[0])


def test_a_handler_that_outlives_its_lease_can_see_it_and_is_told(once, clock):
    def handle():
        clock.advance(61)
        assert current().lost
        assert current().remaining == 0
        contextvars.Context().run(somebody_else)
        return "mine"

    def somebody_else():
        once.using(name=f"{__name__}.{handle.__qualname__}").acquire("k").complete("theirs")

    with pytest.raises(LeaseLost):
        once.run("k", handle)
    assert once.run("k", handle) == "theirs"


# --- nesting and re-entrancy ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_busy", ["raise", "skip", 30])
def test_a_handler_that_asks_for_its_own_key_is_told_at_once(once, on_busy):
    @once(key="n", on_busy=on_busy, name="n")
    def handle(n):
        with pytest.raises(Reentrant, match="n:1"):
            handle(n)
        if on_busy != "skip":
            with pytest.raises(Reentrant), once.claim(1, name="n", on_busy=on_busy):
                pass
        return "ok"

    start = time.monotonic()
    assert handle(1) == "ok"
    assert time.monotonic() - start < 25, "it waited for itself"


def test_a_coroutine_that_asks_for_its_own_key_is_told_at_once(once):
    @once(key="n", on_busy=30)
    async def handle(n):
        with pytest.raises(Reentrant):
            await handle(n)
        with pytest.raises(Reentrant):
            await asyncio.create_task(handle(n))
        return "ok"

    assert asyncio.run(asyncio.wait_for(handle(1), 10)) == "ok"


def test_another_task_or_thread_that_asks_for_the_key_is_not_reentrant(once):
    async def main():
        started = asyncio.Event()

        @once(key="n", on_busy=10)
        async def handle(n):
            started.set()
            await asyncio.sleep(0.05)
            return "first"

        one = asyncio.create_task(handle(1))
        await started.wait()
        return await handle(1), await one

    assert asyncio.run(main()) == ("first", "first")


def test_a_task_that_a_handler_left_behind_may_ask_for_its_key_later(once):
    async def main():
        later = []

        @once(key="n")
        async def handle(n):
            later.append(asyncio.create_task(after()))
            return "done"

        async def after():
            await asyncio.sleep(0.01)
            return await handle(1)

        await handle(1)
        return await later[0]

    assert asyncio.run(main()) == "done"


# --- where handlers run -------------------------------------------------------------------------------------------------------


def test_a_handler_runs_in_the_callers_thread_with_its_locals_and_context(once):
    local = threading.local()
    variable = contextvars.ContextVar("variable", default="unset")

    def handle():
        seen = (threading.get_ident(), local.value, variable.get())
        variable.set("by handler")
        return seen

    local.value = 5
    variable.set("by caller")
    assert once.run("k", handle) == (threading.get_ident(), 5, "by caller")
    assert variable.get() == "by handler"


def test_a_coroutine_runs_in_the_callers_task(once):
    async def handle():
        return (id(asyncio.current_task()), threading.get_ident())

    async def main():
        assert await once.run_async("k", handle) == (id(asyncio.current_task()), threading.get_ident())

    asyncio.run(main())


@pytest.fixture(params=["memory", "sqlite"])
def shared(request, tmp_path):
    once = Once("memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/ledger.db")
    yield once
    once.close()


def test_one_once_is_shared_by_hundreds_of_threads(shared):
    runs = []
    answers = []
    patient = shared.using(on_busy=60)
    barrier = threading.Barrier(200)

    def handle(number):
        runs.append(number)
        return number * 2

    def work(number):
        barrier.wait()
        answers.append(patient.run(number % 20, handle, number % 20))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(runs) == list(range(20))
    assert sorted(answers) == sorted(number % 20 * 2 for number in range(200))


def test_one_once_is_shared_by_several_event_loops_and_threads(shared):
    runs = []
    patient = shared.using(on_busy=60, name="shared")

    async def handle_async(number):
        runs.append(number)
        await asyncio.sleep(0)
        return number

    def handle(number):
        runs.append(number)
        return number

    answers = []

    async def main():
        answers.extend(await asyncio.gather(*(patient.run_async(n, handle_async, n) for n in range(30))))

    def loop():
        asyncio.run(main())

    def plain():
        answers.extend(patient.run(n, handle, n) for n in reversed(range(30)))

    threads = [threading.Thread(target=target) for target in (loop, plain, loop, plain, loop)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(runs) == list(range(30))
    assert sorted(answers) == sorted(list(range(30)) * 5)


# --- when things go wrong -----------------------------------------------------------------------------------------------------


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")

    def __repr__(self):  # asyncio.run itself needs one
        return "Mute()"


@pytest.mark.parametrize(
    "error",
    [
        Failure("x"),
        Mute(),
        ExceptionGroup("group", [ValueError(1), Failure(2)]),
        ValueError("\udcff"),
        ValueError("a\x00b"),
        ValueError("x" * 1_000_000),
        RecursionError(),
        MemoryError(),
        StopIteration(1),
        OSError(2, "no"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("form", ["run", "run_async", "claim"])
def test_any_exception_of_a_handler_comes_out_as_it_is_and_gives_key_back(tmp_path, error, form):
    once = Once(f"sqlite:///{tmp_path}/ledger.db")

    def handle():
        raise error

    async def handle_async():
        raise error

    with pytest.raises(BaseException) as raised:
        if form == "run":
            once.run("k", handle)
        elif form == "claim":
            with once.claim("k"):
                raise error
        else:
            asyncio.run(once.run_async("k", handle_async))
    if not (form == "run_async" and isinstance(error, StopIteration)):  # which a coroutine may not raise
        assert raised.value is error
        assert not getattr(error, "__notes__", [])
    ((record, _),) = once.ledger.records()
    assert record.status == "RELEASED"
    assert type(error).__name__ in record.error or isinstance(error, StopIteration)
    assert len(record.error) <= 1000
    once.close()


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), SystemExit(1), GeneratorExit(), BaseExceptionGroup("x", [KeyboardInterrupt()])],
    ids=lambda error: type(error).__name__,
)
def test_an_interrupted_handler_keeps_its_key_to_the_end_of_the_lease(once, clock, error):
    def handle():
        raise error

    with pytest.raises(type(error)):
        once.run("k", handle)
    assert statuses(once) == ["IN_PROGRESS"]
    with pytest.raises(Busy):
        once.run("k", handle)
    clock.advance(61)
    with pytest.raises(type(error)):
        once.run("k", handle)


def test_a_cancelled_handler_keeps_its_key_to_the_end_of_the_lease(once, clock):
    async def handle():
        await asyncio.sleep(60)

    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(once.run_async("k", handle), 0.05)
        with pytest.raises(Busy):
            await once.run_async("k", handle)

    asyncio.run(main())
    assert statuses(once) == ["IN_PROGRESS"]


def test_a_cancellation_shows_the_lost_claim_that_it_took_the_place_of(once, clock, monkeypatch):
    async def main():
        awaited = once.store.exchange_async

        async def cancelled(request):
            reply = await awaited(request)
            asyncio.current_task().cancel()  # comes through at the next request, when the block is left
            monkeypatch.setattr(once.store, "exchange_async", slow)
            return reply

        async def slow(request):
            await asyncio.sleep(0)
            return await awaited(request)

        async with once.claim("k") as claim:
            clock.advance(61)
            once.acquire("k")
            monkeypatch.setattr(once.store, "exchange_async", cancelled)
            await claim.complete_async("late")

    with pytest.raises(asyncio.CancelledError) as caught:
        asyncio.run(main())
    assert isinstance(caught.value.__context__, LeaseLost)


def test_a_cancelled_waiter_leaves_the_key_alone(once):
    async def main():
        claim = await once.acquire_async("k")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), once.claim("k", on_busy=60):
                pass
        await claim.complete_async("mine")

    asyncio.run(main())
    assert statuses(once) == ["COMPLETED"]


def test_a_handler_that_ended_its_claim_itself_is_not_ended_again(once):
    def handle():
        current().complete("told")
        return "returned"

    assert once.run("k", handle) == "returned"
    assert once.run("k", handle) == "told"


def test_a_handler_that_completed_and_then_raises_stays_completed(once):
    def handle():
        current().complete("told")
        raise Failure

    with pytest.raises(Failure):
        once.run("k", handle)
    assert once.run("k", handle) == "told"


@pytest.fixture(params=["sync", "async"])
def call(request):
    def run(once, function):
        if request.param == "sync":
            return once.run("k", function)

        async def wrapped():
            return function()

        return asyncio.run(once.using(name=f"{function.__module__}.{function.__qualname__}").run_async("k", wrapped))

    return run


def lambda_free():
    pytest.fail("it ran")


class Bug(MemoryStore):
    def exchange(self, request):
        raise ZeroDivisionError


def test_a_store_with_a_bug_means_that_the_handler_does_not_run():
    with pytest.raises(ZeroDivisionError):
        Once(Bug()).run("k", lambda_free)


# --- errors ---------------------------------------------------------------------------------------------------------------------

ERRORS = [
    Busy("k", 1.5),
    Reentrant("k"),
    Mismatch("k"),
    Parked("k", 3, "Failure: no"),
    Completed("k", {"a": 1}),
    LeaseLost("k", "complete"),
    ResultUnavailable("k", "why"),
    ResultNotRecorded("k", [1], "the disk is full"),
    StoreError("x", transient=True),
    KeyMissing("x"),
]


@each("error", ERRORS)
@each(
    "how",
    [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))],
)
def test_errors_can_be_copied_and_pickled(error, how):
    again = how(error)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
