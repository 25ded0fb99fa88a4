"""Many who wait for one key: one of them asks the store, whatever thread or task each is in."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from onceward import Busy, Once
from onceward.stores.memory import MemoryStore

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
