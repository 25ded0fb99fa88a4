"""The connections that a ledger of a URL holds: each answer goes to its own request, also after an interrupt or a broken line."""

import asyncio
import gc
import os
import signal
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event

import pytest
import redis as driver
import redis.asyncio as driver_async

from onceward import Once, StoreError
from onceward.core.drivers import drive, drive_async
from onceward.stores import open_store
from onceward.stores.redis import lane, open_ledger
from onceward.testing.bench import claim_of
from servers.gates import Gate
from servers.redis import Redis, Replica, until

pytestmark = pytest.mark.sampled(mode=1)


@pytest.fixture(scope="module")
def server():
    made = Redis()
    yield made
    made.stop()


@pytest.fixture
def store(server):
    server.ask("FLUSHALL")
    made = open_store(f"{server.url}?timeout=60")
    drive(made.insert_many([claim_of(key) for key in "ab"]), made)
    yield made
    made.close()


class Interrupt(BaseException):
    """What a signal handler raises."""


def raise_interrupt(*_):
    raise Interrupt


def key_of(reply):
    return reply.record.key


def received(server):
    with server.client() as client:
        return client.info("stats")["total_connections_received"]


def test_an_interrupted_request_leaves_its_answer_to_nobody(server, store):
    before = signal.signal(signal.SIGALRM, raise_interrupt)
    try:
        server.pause()
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Interrupt):
            drive(store.load("a"), store)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        server.go_on()
    assert [key_of(drive(store.load(key), store)) for key in "bab"] == ["b", "a", "b"]


def test_a_cancelled_request_leaves_its_answer_to_nobody(server, store):
    async def use():
        await drive_async(store.load("a"), store)
        server.pause()
        try:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(drive_async(store.load("a"), store), 0.2)
        finally:
            server.go_on()
        return [key_of(await drive_async(store.load(key), store)) for key in "bab"]

    assert asyncio.run(use()) == ["b", "a", "b"]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_answer_in_disorder_ends_its_connection(server, store, mode, monkeypatch):
    kind = driver_async.Connection if mode == "async" else driver.Connection
    undone = ValueError("invalid literal for int()")

    def read(*given, **options):
        monkeypatch.undo()
        raise undone

    async def use():
        found = [await drive_async(store.load("a"), store)]
        monkeypatch.setattr(kind, "read_response", read)
        with pytest.raises(StoreError, match="invalid literal") as caught:
            await drive_async(store.load("a"), store)
        assert caught.value.transient
        return found + [await drive_async(store.load(key), store) for key in "bab"]

    if mode == "async":
        assert [key_of(reply) for reply in asyncio.run(use())] == ["a", "b", "a", "b"]
        return
    monkeypatch.setattr(kind, "read_response", read)
    with pytest.raises(StoreError, match="invalid literal") as caught:
        drive(store.load("a"), store)
    assert caught.value.transient
    assert [key_of(drive(store.load(key), store)) for key in "bab"] == ["b", "a", "b"]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_connection_that_the_server_closed_is_replaced_unseen(server, store, mode):
    async def use():
        found = []
        for key in "ab":
            found.append(key_of(await drive_async(store.load(key), store)))
            server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        return found

    if mode == "async":
        assert asyncio.run(use()) == ["a", "b"]
        return
    for key in "ab":
        assert key_of(drive(store.load(key), store)) == key
        server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_connection_that_breaks_while_it_is_held_takes_all_held_ones_along(server, mode):
    once = Once(server.url, name="n")

    async def handle():
        return 1

    async def use():
        for key in "cd":
            assert await once.run_async(f"{mode}-{key}", handle) == 1
            server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    if mode == "async":
        asyncio.run(use())
        return
    for key in "cd":
        assert once.run(f"{mode}-{key}", lambda: 1) == 1
        server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def test_a_server_that_became_a_replica_is_left(server, store):
    drive(store.load("a"), store)
    server.ask("REPLICAOF", "127.0.0.1", "1")
    try:
        before = received(server)
        for _ in range(2):
            (reply,) = drive(store.insert_many([claim_of("x")]), store)
            assert isinstance(reply, StoreError)
        assert received(server) - before >= 2  # this look, and the second request
    finally:
        server.ask("REPLICAOF", "NO", "ONE")


def test_a_forked_child_opens_its_own_connections(server, store):
    drive(store.load("a"), store)
    child = os.fork()
    if not child:
        ends = 1
        try:
            ends = 0 if key_of(drive(store.load("b"), store)) == "b" else 1
        finally:
            os._exit(ends)
    assert key_of(drive(store.load("a"), store)) == "a"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("how", ["use", "close"])
def test_a_forked_child_leaves_the_connections_of_coroutines_to_its_parent(server, how):
    """To drop them would take them out of the parent's event loop, which would hear nothing any more."""
    store = open_store(f"{server.url}?timeout=60")

    def child():
        if how == "use":
            drive(store.load("a"), store)
        store.close()
        gc.collect()

    async def use():
        await drive_async(store.insert(claim_of("a")), store)
        assert await asyncio.to_thread(in_a_child, child) == 0
        before = received(server)
        for _ in range(3):
            assert key_of(await drive_async(store.load("a"), store)) == "a"
        assert received(server) - before == 1  # this look

    asyncio.run(asyncio.wait_for(use(), 50))


def test_an_asynchronous_client_is_refused_in_a_forked_child(server):
    async def use():
        async with driver_async.Redis(port=server.port) as client:
            store = open_ledger(client)
            await drive_async(store.insert(claim_of("a")), store)

            def child():
                with pytest.raises(StoreError, match="forked"):
                    asyncio.run(drive_async(store.load("a"), store))

            assert await asyncio.to_thread(in_a_child, child) == 0
            for key in "ba":
                assert (await drive_async(store.insert(claim_of(key)), store)).record.key == key

    asyncio.run(asyncio.wait_for(use(), 50))


def test_an_asynchronous_client_that_was_made_and_not_used_before_a_fork_works_in_the_child(server):
    """Servers that preload an application make it before they fork their workers."""
    store = open_ledger(driver_async.Redis(port=server.port))

    def child():
        assert asyncio.run(drive_async(store.insert(claim_of("a")), store)).record.key == "a"

    assert in_a_child(child) == in_a_child(child) == 0


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


def test_loops_that_are_closed_without_their_generators_leave_no_connections(server, store):
    open_ones = lambda: len(os.listdir("/proc/self/fd"))
    before = open_ones()
    for _ in range(20):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(drive_async(store.load("a"), store))
        loop.close()  # asyncio.run() closes the generators first
    gc.collect()
    assert open_ones() - before < 10


# --- requests of many tasks that share a connection -------------------------------------------------------------------------

MANY = 40


async def loads(store, keys):
    return await asyncio.gather(*(drive_async(store.load(key), store) for key in keys), return_exceptions=True)


def test_a_cancelled_task_takes_no_answer_from_the_others(server, store):
    async def use():
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
        return await asyncio.gather(*under_way, return_exceptions=True)

    found = asyncio.run(use())
    for at, reply in enumerate(found):
        assert isinstance(reply, asyncio.CancelledError) if at % 3 == 0 else key_of(reply) == "ab"[at % 2]


def test_a_broken_line_is_told_to_all_that_shared_it_and_the_next_request_works(server, store):
    gate = Gate(server.port)
    far = open_store(f"redis://127.0.0.1:{gate.port}/0?timeout=60")

    async def use():
        await loads(far, "ab" * MANY)
        server.pause()
        try:
            under_way = asyncio.ensure_future(loads(far, "ab" * MANY))
            await asyncio.sleep(0.1)
            gate.turn(server.port)
            await asyncio.sleep(0.1)
        finally:
            server.go_on()
        return await under_way, await loads(far, "ab" * MANY)

    try:
        broken, after = asyncio.run(use())
    finally:
        gate.close()
    assert any(isinstance(reply, StoreError) and reply.transient for reply in broken)
    assert all(key_of(reply) == "ab"[at % 2] for at, reply in enumerate(broken) if not isinstance(reply, Exception))
    assert [key_of(reply) for reply in after] == list("ab" * MANY)


def test_who_shares_a_request_with_one_that_was_stopped_is_in_doubt_and_not_cancelled(server, store, monkeypatch):
    stopped = []

    async def use():
        await loads(store, "ab" * MANY)
        talked = lane._talked_async

        async def struck(*given):
            if not stopped and asyncio.current_task().get_coro().__name__ == "_serve":
                stopped.append(True)
                raise asyncio.CancelledError
            return await talked(*given)

        monkeypatch.setattr(lane, "_talked_async", struck)
        return await loads(store, "ab" * MANY), await loads(store, "ab" * MANY)

    first, second = asyncio.run(use())
    lost = [one for one in first if isinstance(one, BaseException)]
    assert len(lost) > 1
    assert all(isinstance(one, StoreError) and one.transient for one in lost)
    assert [key_of(reply) for reply in second] == list("ab" * MANY)


def test_one_key_is_won_once_by_many_tasks_that_share_requests(server, store):
    server.ask("FLUSHALL")
    made = asyncio.run(inserts(store, [f"k{number % 4}" for number in range(MANY)]))
    won = [reply for reply in made if reply.won]
    assert sorted(map(key_of, won)) == ["k0", "k1", "k2", "k3"]
    assert {reply.record.owner for reply in made} == {reply.record.owner for reply in won}


def test_a_write_that_cannot_be_sent_fails_alone(server, store):
    server.ask("FLUSHALL")
    claims = [claim_of(f"k{number}")._replace(worker="\ud800" if number % 10 == 9 else "w") for number in range(MANY)]

    async def use():
        steps = [drive_async(store.insert(claim), store) for claim in claims]
        return await asyncio.gather(*steps, return_exceptions=True)

    for number, reply in enumerate(asyncio.run(use())):
        assert (isinstance(reply, StoreError) and not reply.transient) if number % 10 == 9 else reply.won


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_nobody_waits_for_ever_for_a_server_that_does_not_answer(server, mode):
    store = open_store(f"{server.url}?timeout=0.4")
    drive(store.load("a"), store)

    def load(key):
        try:
            return drive(store.load(key), store)
        except StoreError as error:
            return error

    async def use():
        return await asyncio.wait_for(loads(store, "ab" * MANY), 30)

    server.pause()
    try:
        with ThreadPoolExecutor(MANY) as pool:
            found = asyncio.run(use()) if mode == "async" else list(pool.map(load, "ab" * MANY, timeout=30))
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


@pytest.mark.nightly
def test_a_ledger_that_is_closed_under_calls_in_threads_lets_them_have_their_answers(server):
    once, threads = Once(server.url), 4

    def work(number):
        return [once.run(f"{number}-{turn}", str, "v") for turn in range(50)]

    with ThreadPoolExecutor(threads) as pool:
        calls = [pool.submit(work, number) for number in range(threads)]
        while not all(call.done() for call in calls):
            once.close()
            wait(calls, timeout=0.01)
    assert all(call.result() == ["v"] * 50 for call in calls)
    once.close()


def test_a_closed_ledger_leaves_no_connection_of_the_calls_that_were_under_way(server):
    once, inside, closed = Once(server.url), Event(), Event()

    def handle():
        inside.set()
        assert closed.wait(30)

    server.ask("FLUSHALL")
    before = connected(server)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(once.run, "a", handle)
        assert inside.wait(30)
        once.close()
        closed.set()
        call.result()
    once.close()
    until(lambda: connected(server) <= before, server)


def connected(server):
    with server.client() as client:
        return {one["id"] for one in client.client_list() if not one["cmd"].startswith("client")}
