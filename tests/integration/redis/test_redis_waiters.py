"""Whoever waits for a busy key is woken by its end, and asks the server little meanwhile."""

import asyncio
import threading
import time

import pytest

from onceward import Once
from onceward.stores.capabilities import OBSERVE
from servers.redis import until


def waiting(redis, once, count):
    """Wait until so many wait for the bell of the key."""
    key = b"n:k"
    counter = once.store.names.shard_of(key).keys_of(key)[1]
    until(lambda: redis.ask("GET", counter) in set(map(str, range(count, 10 * count))), redis)


@pytest.mark.parametrize("how", ["complete", "release", "park"])
def test_a_waiter_is_woken_and_does_not_poll(redis, redis_url, how):
    holder, asked, told = Once(redis_url, name="n", lease=60), [], []
    claim = holder.acquire("k")
    # So patient a client that a waiter whom nobody wakes looks again after a minute only.
    once = Once(f"{redis_url}{'&' if '?' in redis_url else '?'}timeout=240", name="n", on_busy=60.0, lease=60)
    OBSERVE.require(once.store)(asked.append)

    def wait():
        try:
            told.append(once.run("k", lambda: "mine"))
        except Exception as error:
            told.append(type(error).__name__)

    waiters = [threading.Thread(target=wait) for _ in range(5)]
    for one in waiters:
        one.start()
    waiting(redis, holder, 1)
    before = len(asked)
    time.sleep(2.0)
    assert len(asked) - before <= 20, "five waiters of a process ask for nothing while the key is held"
    {"complete": lambda: claim.complete("theirs"), "release": claim.release, "park": claim.park}[how]()
    end = time.monotonic() + 30
    for one in waiters:
        one.join(max(0.0, end - time.monotonic()))
    assert told == [{"complete": "theirs", "release": "mine", "park": "Parked"}[how]] * 5


def test_waiters_in_coroutines_and_other_processes_handles_are_woken(redis, redis_url):
    claim = Once(redis_url, name="n", lease=60).acquire("k")

    async def main():
        onces = [Once(redis_url, name="n", on_busy=60.0) for _ in range(3)]

        async def never():
            raise AssertionError

        tasks = [asyncio.create_task(once.run_async("k", never)) for once in onces for _ in range(2)]
        await asyncio.to_thread(waiting, redis, onces[0], 3)
        await asyncio.to_thread(claim.complete, 7)
        assert await asyncio.wait_for(asyncio.gather(*tasks), 60) == [7] * 6

    asyncio.run(main())


def test_a_waiter_that_is_cancelled_holds_up_nobody_while_its_exception_is_kept(redis, redis_url):
    claim = Once(redis_url, name="n", lease=600).acquire("k")

    async def main():
        once = Once(redis_url, name="n", on_busy=600.0)
        first, *others = [asyncio.create_task(once.run_async("k", asyncio.sleep, 0)) for _ in range(3)]
        await asyncio.to_thread(waiting, redis, once, 1)
        first.cancel()
        kept = await asyncio.gather(first, return_exceptions=True)
        await asyncio.to_thread(claim.complete, 7)
        assert await asyncio.wait_for(asyncio.gather(*others), 60) == [7, 7]
        assert isinstance(kept[0], asyncio.CancelledError)

    asyncio.run(main())


def test_a_waiter_takes_over_when_the_holder_vanishes(redis_url):
    Once(redis_url, name="n", lease=1.0, heartbeat=0).acquire("k")
    assert Once(redis_url, name="n", on_busy=60.0).run("k", lambda: "heir") == "heir"
