"""Every option of a policy: its default, what it refuses, and what it does; of many who wait for one key, one asks the store."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from faults.injected import Faults
from onceward import Busy, Mismatch, Once, Policy
from onceward.stores.memory import MemoryStore
from tables import each
from waiting import within


def vanish(once, key="k", **options):
    """Claim a key as a worker that is never heard of again."""
    return once.using(**options).acquire(key, name="n")


def test_the_defaults_are_safe():
    assert Policy() == (60.0, None, None, "raise", "retry", "release", (), 14 * 86400.0, 0, None, None, False)


@each(
    ("options", "named"),
    [
        ({"lease": 10, "retention": 5}, "retention=5.*lease=10"),
        ({"lease": 10, "heartbeat": 10}, "heartbeat=10.*lease=10"),
        ({"heartbeat": -1}, "heartbeat=-1.*lease=60"),
        ({"retention": float("inf")}, "retention=inf.*None is for ever"),
    ],
)  # fmt: skip
def test_a_contradiction_is_refused_with_both_values_at_decorating(once, options, named):
    for make in (partial(Once, MemoryStore()), partial(once, key="x"), partial(once.claim, "k")):
        with pytest.raises(ValueError, match=named):
            make(**options)


NAN = float("nan")


@each(
    ("name", "values"),
    [
        ("lease", [0, float("inf"), NAN, 10**400, "60", True]),
        ("heartbeat", [NAN]),
        ("retention", [NAN, -1, "1d"]),
        ("max_attempts", [0, 1.5, True]),
        ("cache", [-1, None]),
        ("max_result", [-1]),
        ("on_busy", ["wait", -1, True, None]),
        ("on_lapse", ["release"]),
        ("on_error", ["retry"]),
        ("final", [LookupError, [LookupError], (KeyboardInterrupt,), (LookupError(),)]),
        ("leese", [5]),
    ],
)
def test_a_value_that_means_nothing_is_refused_by_name(name, values):
    for value in values:
        with pytest.raises((ValueError, TypeError), match=name):
            Once(MemoryStore(), **{name: value})


def test_the_default_of_max_result_is_the_stores(once):
    assert once.acquire("a").policy.max_result == once.store.max_result == 256 * 1024
    assert once.acquire("b", max_result=7).policy.max_result == 7


def test_on_busy_raises_at_once_or_skips_or_gives_up(once, clock):
    vanish(once, lease=30)
    clock.advance(10)
    with pytest.raises(Busy) as busy, once.claim("k", name="n"):
        pass
    assert busy.value.retry_after == pytest.approx(20)
    assert once(key="k", name="n", on_busy="skip")(lambda k: pytest.fail("it ran"))("k") is None
    with pytest.raises(ValueError, match="a with block cannot be skipped, so catch Busy"):
        once.claim("k", on_busy="skip")
    with pytest.raises(ValueError, match="acquire returns a claim and nothing else, so catch Busy"):
        once.acquire("k", on_busy="skip")

    def wait(_):
        with pytest.raises(Busy):
            Once(once.store, on_busy=0.1).acquire("k", name="n")

    within(2, wait, least=0.09)


def test_a_waiter_gets_the_result_or_runs_the_handler_itself_when_the_run_it_waits_for_fails_or_lapses():
    once = Once(MemoryStore(), on_busy=10)
    for key, end, got in (
        ("completes", lambda claim: claim.complete("theirs"), "theirs"),
        ("fails", lambda claim: claim.release("no"), "mine"),
        ("lapses", lambda claim: None, "mine"),
    ):
        timer = threading.Timer(0.1, end, [vanish(once, key, lease=0.15 if key == "lapses" else 60)])
        timer.start()
        assert once.using(name="n").run(key, lambda: "mine") == got
        timer.join()


@pytest.mark.parametrize("options", [{}, {"on_error": "park"}, {"max_attempts": 1}, {"cache": 5}])
def test_final_exception_is_recorded_and_raised_again_for_every_duplicate(once, options):
    runs, caught = [], []

    @once(key="order", final=(LookupError,), **options)
    def charge(order):
        runs.append(order)
        raise KeyError(order)

    for _ in range(3):
        with pytest.raises(KeyError, match="7") as declined:
            charge(7)
        caught.append(declined.value)
    assert len({id(error) for error in caught}) == 3  # each has one of its own
    assert (runs, [record.status for record in once.store.records.values()]) == ([7], ["COMPLETED"])


@pytest.fixture
def counted(clock):
    return Once(Faults(MemoryStore(clock), lambda ask: None), clock=clock, lease=10, retention=100, cache=3)


def test_a_cached_duplicate_costs_no_request_and_is_a_fresh_object(counted):
    guarded = counted(key="k", name="n")(lambda k: {"list": [k]})
    for _ in range(2):
        guarded(1)["list"].append("mutated by the caller")
    before = len(counted.store.asked)
    assert guarded(1) == {"list": [1]}
    assert len(counted.store.asked) == before
    for _ in range(2):
        before = len(counted.store.asked)
        for number in range(20):
            guarded(number)
    assert len(counted.store.asked) - before >= 17  # it holds 3


@pytest.mark.parametrize("cache", [0, 3])
def test_a_result_is_cached_for_what_is_left_of_its_retention(counted, clock, cache):
    runs = []

    def handle(k, v="a"):
        runs.append(k)

    cached = counted(key="k", name="n", fingerprint="v", cache=cache)(handle)
    cached(1)
    clock.advance(90)
    cached(1)
    with pytest.raises(Mismatch):
        cached(1, "b")
    clock.advance(11)
    cached(1)
    assert len(runs) == 2


LONG = 20


def looks(proxy):
    return proxy.actions.count("GetItem")


async def test_a_hundred_waiters_of_a_process_ask_dynamodb_as_one(proxy, url):
    once = Once(url, name="n")
    waiting = once.using(on_busy=LONG)

    def never():
        raise AssertionError("it ran twice")

    claim = once.acquire("k")
    waiters = [asyncio.create_task(waiting.run_async("k", never)) for _ in range(60)]
    with ThreadPoolExecutor(40) as pool:
        threads = [pool.submit(waiting.run, "k", never) for _ in range(40)]
        end = time.monotonic() + LONG
        while looks(proxy) < 5 and time.monotonic() < end:
            await asyncio.sleep(0.01)
        before = looks(proxy)
        await claim.complete_async("done")
        assert set(await asyncio.gather(*waiters)) == {"done"}
        assert set(await asyncio.gather(*map(asyncio.wrap_future, threads))) == {"done"}
    assert 5 <= before < 50  # if each asked for itself, a hundred at once
    assert looks(proxy) - before < 50
    once.close()


async def test_each_waiter_gives_up_at_its_own_time(proxy, url):
    once = Once(url, name="n")

    async def wait(seconds):
        with pytest.raises(Busy):
            await once.using(on_busy=seconds).run_async("k", int)
        return seconds

    once.acquire("k")
    waits = asyncio.as_completed([wait(2.5), wait(0.3), wait(1.2)])
    assert [await one for one in waits] == [0.3, 1.2, 2.5]
    once.close()


async def test_a_waiter_that_is_cancelled_as_it_asks_leaves_the_others_waiting():
    class Slow(MemoryStore):
        """Hangs at the first look, until whoever looks is cancelled."""

        asker = None

        async def exchange_async(self, request):
            if "MemoryStore._load" in repr(request) and self.asker is None:
                self.asker = asyncio.current_task()
                await asyncio.sleep(LONG)
            return await super().exchange_async(request)

    store = Slow()
    once = Once(store, name="n")

    began = time.monotonic()
    claim = once.acquire("k")
    waiters = [asyncio.create_task(once.using(on_busy=LONG).run_async("k", int)) for _ in range(5)]
    while store.asker is None:
        await asyncio.sleep(0.01)
    store.asker.cancel()
    await asyncio.sleep(0.05)
    await claim.complete_async(7)
    outcomes = await asyncio.gather(*waiters, return_exceptions=True)
    assert time.monotonic() - began < LONG / 2
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["CancelledError", *["int"] * 4]
