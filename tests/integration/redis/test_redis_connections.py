"""The connections of a ledger: each answer goes to its own request, also after an interrupt; and who waits for a busy key is woken."""

import asyncio
import gc
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis as driver
import redis.asyncio as driver_async

from fixtures import closing_fixture
from onceward import Once, StoreError
from onceward.core.drivers import drive, drive_async
from onceward.stores import open_store
from onceward.stores.capabilities import OBSERVE
from onceward.testing.bench import claim_of
from servers.redis import Redis, Replica

pytestmark = pytest.mark.sampled(mode=1)
server = closing_fixture(Redis, scope="module")


@pytest.fixture
def store(server):
    server.ask("FLUSHALL")
    made = open_store(f"{server.url}?timeout=60")
    drive(made.insert_many([claim_of(key) for key in "ab"]), made)
    yield made
    made.close()


def key_of(reply):
    return reply.record.key


def received(server):
    with server.client() as client:
        return client.info("stats")["total_connections_received"]


def test_an_interrupted_request_leaves_its_answer_to_nobody(server, store):
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        server.pause()
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            drive(store.load("a"), store)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        server.go_on()
    assert [key_of(drive(store.load(key), store)) for key in "bab"] == ["b", "a", "b"]


@pytest.fixture(params=["sync", "async"])
def run(request):
    """What drives a verb, in a thread or in one event loop."""
    with asyncio.Runner() as runner:

        def run(verb, store):
            return drive(verb, store) if request.param == "sync" else runner.run(drive_async(verb, store))

        run.connection = driver.Connection if request.param == "sync" else driver_async.Connection
        yield run


def test_an_answer_in_disorder_ends_its_connection(store, run, monkeypatch):
    def read(*given, **options):
        monkeypatch.undo()
        raise ValueError("invalid literal for int()")

    assert key_of(run(store.load("a"), store)) == "a"
    monkeypatch.setattr(run.connection, "read_response", read)
    with pytest.raises(StoreError, match="invalid literal") as caught:
        run(store.load("a"), store)
    assert caught.value.transient
    assert [key_of(run(store.load(key), store)) for key in "bab"] == ["b", "a", "b"]
    store.close()


def test_connections_that_the_server_closed_are_replaced_unseen(server, store, run):
    for key in "abab":
        assert key_of(run(store.load(key), store)) == key
        server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    store.close()


@pytest.mark.parametrize("how", ["use", "close"])
async def test_a_forked_child_leaves_the_connections_of_coroutines_to_its_parent(server, how):
    """To drop them would take them out of the parent's event loop, which would hear nothing any more."""
    store = open_store(f"{server.url}?timeout=60")

    def child():
        if how == "use":
            drive(store.load("a"), store)
        store.close()
        gc.collect()

    async with asyncio.timeout(50):
        await drive_async(store.insert(claim_of("a")), store)
        assert await asyncio.to_thread(in_a_child, child) == 0
        before = received(server)
        for _ in range(3):
            assert key_of(await drive_async(store.load("a"), store)) == "a"
        assert received(server) - before == 1  # this look


def in_a_child(work):
    """Run it in a forked child, and return the child's exit status."""
    child = os.fork()
    if not child:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


MANY = 40


async def loads(store, keys):
    return await asyncio.gather(*(drive_async(store.load(key), store) for key in keys), return_exceptions=True)


async def test_a_cancelled_task_takes_no_answer_from_the_others(server, store):
    await loads(store, "ab" * MANY)
    server.pause()
    try:
        under_way = [asyncio.ensure_future(drive_async(store.load(key), store)) for key in "ab" * MANY]
        await asyncio.sleep(0.1)
        for task in under_way[::3]:
            task.cancel()
        await asyncio.sleep(0)
    finally:
        server.go_on()
    found = await asyncio.gather(*under_way, return_exceptions=True)
    for at, reply in enumerate(found):
        assert isinstance(reply, asyncio.CancelledError) if at % 3 == 0 else key_of(reply) == "ab"[at % 2]


def test_a_write_that_cannot_be_sent_fails_alone(server, store):
    server.ask("FLUSHALL")
    claims = [claim_of(f"k{number}")._replace(worker="\ud800" if number % 10 == 9 else "w") for number in range(MANY)]

    async def use():
        steps = [drive_async(store.insert(claim), store) for claim in claims]
        return await asyncio.gather(*steps, return_exceptions=True)

    for number, reply in enumerate(asyncio.run(use())):
        assert (isinstance(reply, StoreError) and not reply.transient) if number % 10 == 9 else reply.won


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_nobody_waits_for_ever_for_a_server_that_does_not_answer(server, mode):
    store = open_store(f"{server.url}?timeout=0.4")
    drive(store.load("a"), store)

    def load(key):
        try:
            return drive(store.load(key), store)
        except StoreError as error:
            return error

    server.pause()
    try:
        with ThreadPoolExecutor(MANY) as pool:
            told = await asyncio.wait_for(loads(store, "ab" * MANY), 30)
            found = told if mode == "async" else list(pool.map(load, "ab" * MANY, timeout=30))
    finally:
        server.go_on()
    assert all(isinstance(one, StoreError) and one.transient for one in found)
    after = open_store(server.url)
    assert key_of(drive(after.insert(claim_of("a")), after)) == "a"


def test_requests_sent_together_share_a_confirmation(server):
    replica = Replica(server)
    try:
        far = open_store(f"{server.url}?wait=1")
        asyncio.run(inserts(far, ["first"]))  # until one has looked at the ledger's format, each does
        with server.client() as client:
            client.config_resetstat()
            made = asyncio.run(inserts(far, [f"told-{number}" for number in range(MANY)]))
            asked = client.info("commandstats")["cmdstat_wait"]["calls"]
        assert [reply for reply in made if isinstance(reply, Exception)] == []
        assert all(reply.won for reply in made)
        assert asked < MANY / 2
        replica.pause()
        lost = asyncio.run(inserts(open_store(f"{server.url}?wait=1&timeout=1"), "cdefghijkl"))
        assert all("replica(s) confirmed" in str(one) for one in lost)
    finally:
        replica.stop()


async def inserts(store, keys):
    return await asyncio.gather(
        *(drive_async(store.insert(claim_of(key)), store) for key in keys), return_exceptions=True
    )


def waiting(redis, once, count):
    """Wait until so many wait for the bell of the key."""
    key = b"n:k"
    counter = once.store.names.shard_of(key).keys_of(key)[1]
    redis.until(lambda: redis.ask("GET", counter) in set(map(str, range(count, 10 * count))))


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


async def test_waiters_in_coroutines_and_other_processes_handles_are_woken(redis, redis_url):
    claim = Once(redis_url, name="n", lease=60).acquire("k")
    onces = [Once(redis_url, name="n", on_busy=60.0) for _ in range(3)]

    async def never():
        raise AssertionError

    tasks = [asyncio.create_task(once.run_async("k", never)) for once in onces for _ in range(2)]
    await asyncio.to_thread(waiting, redis, onces[0], 3)
    await asyncio.to_thread(claim.complete, 7)
    assert await asyncio.wait_for(asyncio.gather(*tasks), 60) == [7] * 6


async def test_a_waiter_that_is_cancelled_holds_up_nobody_while_its_exception_is_kept(redis, redis_url):
    claim = Once(redis_url, name="n", lease=600).acquire("k")
    once = Once(redis_url, name="n", on_busy=600.0)
    first, *others = [asyncio.create_task(once.run_async("k", asyncio.sleep, 0)) for _ in range(3)]
    await asyncio.to_thread(waiting, redis, once, 1)
    first.cancel()
    kept = await asyncio.gather(first, return_exceptions=True)
    await asyncio.to_thread(claim.complete, 7)
    assert await asyncio.wait_for(asyncio.gather(*others), 60) == [7, 7]
    assert isinstance(kept[0], asyncio.CancelledError)


def test_a_waiter_takes_over_when_the_holder_vanishes(redis_url):
    Once(redis_url, name="n", lease=1.0, heartbeat=0).acquire("k")
    assert Once(redis_url, name="n", on_busy=60.0).run("k", lambda: "heir") == "heir"
