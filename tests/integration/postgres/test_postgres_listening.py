"""Waiters of a busy key are told when its claim ends, by LISTEN and NOTIFY; and a network that swallows what is sent holds nobody up."""

import asyncio
import contextlib
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import psycopg
import pytest

from fixtures import closing_fixture
from onceward import Once, StoreError
from onceward.stores.postgres import listening
from onceward.stores.postgres.store import ChangeRequest
from servers.postgres import PgBouncer
from servers.wires import Fault, Wire
from waiting import until

pytestmark = pytest.mark.sampled(once=1)

LONG = 600.0  # seconds: a waiter that is not told does not end in time
PATIENCE = 60.0  # a claim asks for two, and then once more, for the second that a statement may take


@pytest.fixture
def told_only(monkeypatch):
    monkeypatch.setattr(listening, "LONGEST", LONG)


holder = closing_fixture(lambda schema: Once(schema, name="n", lease=LONG))
# Another process, as far as its connections go.
peer = closing_fixture(lambda schema: Once(schema, name="n", lease=LONG, on_busy=LONG))


class Waiting:
    """A thread that waits for a busy key."""

    def __init__(self, once, key="k"):
        self.got = []
        self._thread = threading.Thread(target=lambda: self.got.append(once.run(key, lambda: "its own")), daemon=True)
        self._thread.start()

    def ended(self):
        self._thread.join(PATIENCE)
        return self.got


def until_listened_to(once, keys=1):
    """Wait until waiters sleep until they are told."""
    ear = once.store.conduit.ear
    until(lambda: sum(one.number is not None and bool(one.wakes) for one in list(ear._keys.values())) == keys)


def met(holder, peer):
    """Return a claim, and one that waits for its key and is listened to."""
    claim = holder.acquire("k")
    waiting = Waiting(peer)
    until_listened_to(peer)
    return claim, waiting


@pytest.mark.usefixtures("told_only")
@pytest.mark.parametrize(("end", "got"), [("complete", ["done"]), ("release", ["its own"])])
def test_waiters_are_told_of_an_end(holder, peer, end, got):
    claim = holder.acquire("k")
    waiting = [Waiting(peer) for _ in range(3 if end == "complete" else 1)]
    until_listened_to(peer)
    getattr(claim, end)("done")
    assert [one.ended() for one in waiting] == [got] * len(waiting)


@pytest.mark.usefixtures("told_only")
def test_waiters_are_told_when_the_transaction_commits(holder, peer, postgres):
    with psycopg.connect(postgres.url, autocommit=True) as connection, holder.claim("k") as claim:
        waiting = Waiting(peer)
        until_listened_to(peer)
        with claim.transaction(connection) as transaction:
            transaction.result = "done"
    assert waiting.ended() == ["done"]


@pytest.mark.usefixtures("told_only")
async def test_a_coroutine_is_told(holder, peer):
    claim = await holder.acquire_async("k")
    tasks = [asyncio.create_task(peer.run_async("k", lambda: "its own")) for _ in range(3)]
    await asyncio.to_thread(until_listened_to, peer)
    await claim.complete_async("done")
    told = await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
    assert told == ["done"] * 3


def test_nobody_is_notified_when_nobody_waits(holder, peer, postgres):
    key = uuid4().hex  # tests beside this one notify, too
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"LISTEN {listening.CHANNEL}")
        for n in range(20):
            holder.run(f"{key}{n}", lambda: "done")
        claim = holder.acquire(key)
        waiting = Waiting(peer, key)
        until_listened_to(peer)
        claim.complete("done")
        assert waiting.ended() == ["done"]
        asked = "SELECT hashtextextended('n:' || k, 7162831505713)::text FROM unnest(%s::text[]) AS u(k)"
        (number,), *others = connection.execute(asked, [[key, *(f"{key}{n}" for n in range(20))]]).fetchall()
        told = []
        while number not in told:
            told += [one.payload for one in connection.notifies(timeout=PATIENCE, stop_after=1)]
        assert not {other for (other,) in others} & set(told)


def test_a_listener_that_is_cut_off_leaves_nobody_waiting(holder, peer, postgres, monkeypatch):
    monkeypatch.setattr(listening, "DEAF", 0.1)
    claim, waiting = met(holder, peer)
    listeners = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_try_advisory_lock_shared%'"
    )
    assert postgres.sql(f"{listeners} AND pid <> pg_backend_pid()")
    until_listened_to(peer)  # again
    claim.complete("done")
    assert waiting.ended() == ["done"]


def test_through_a_pooler_nobody_listens_and_waiters_look(postgres15, caplog):
    caplog.set_level("INFO")
    bouncer = PgBouncer(postgres15)
    try:
        schema = f"?schema=listening_{bouncer.port}"
        holder, peer = Once(postgres15.url + schema, name="n"), Once(bouncer.url + schema, name="n", on_busy=LONG)
        claim = holder.acquire("k")
        waiting = Waiting(peer)
        until(lambda: "a pooler stands between" in caplog.text)
        claim.complete("done")
        assert waiting.ended() == ["done"]
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        until(lambda: postgres15.sql(locks, database="test") == [(0,)])  # other tests have some for a moment
        holder.close()
        peer.close()
    finally:
        bouncer.stop()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.usefixtures("told_only")
def test_a_forked_child_listens_for_itself(holder, peer):
    claim, waiting = met(holder, peer)
    child = os.fork()
    if not child:
        os._exit(0 if peer.run("k", lambda: "its own") == "done" else 1)
    time.sleep(0.2)  # so that it waits, too; it ends rightly all the same
    claim.complete("done")
    assert waiting.ended() == ["done"]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def ear(monkeypatch):
    """One whose thread never comes."""
    ear = listening.Ear("", 1.0)
    monkeypatch.setattr(ear, "_listens", lambda: True)
    return ear


@pytest.mark.usefixtures("told_only")
@pytest.mark.parametrize("steps", range(4))
async def test_a_cancellation_is_not_lost_beside_a_change(ear, steps):
    task = asyncio.create_task(ear.run_async(ChangeRequest("k", LONG), None))
    while not ear._keys:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    listening._wake(ear._keys["k"])
    for _ in range(steps):
        await asyncio.sleep(0)
    if task.cancel():
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        assert await task


BLACK_HOLE = Fault(freeze=600.0)
wire = closing_fixture(lambda postgres15: Wire(postgres15.port))


@pytest.fixture
def swallowing(wire):
    """A network that swallows what is sent on a connection in use, and on later ones."""
    url = f"postgresql://postgres@127.0.0.1:{wire.port}/test?schema=holes_{wire.port}"
    Once(url).acquire("made").complete(None)  # which can take longer
    once = Once(f"{url}&timeout=1")
    once.acquire("before").complete(None)
    wire.rule = lambda asked: BLACK_HOLE
    return once


@pytest.fixture
def silent(wire):
    """A server that takes connections and says nothing."""
    wire.rule = lambda asked: BLACK_HOLE
    return Once(f"postgresql://postgres@127.0.0.1:{wire.port}/test?timeout=1")


@pytest.fixture
def unreachable():
    """A server whose backlog is full: it does not answer the first packet."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        while True:
            end = stack.enter_context(socket.socket())
            end.settimeout(0.3)
            try:
                end.connect(("127.0.0.1", port))
            except TimeoutError:
                break
        yield Once(f"postgresql://postgres@127.0.0.1:{port}/test?timeout=1")


once = closing_fixture(
    lambda request: request.getfixturevalue(request.param), params=["swallowing", "silent", "unreachable"]
)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_claim_gives_up_in_time(once, mode):
    with ThreadPoolExecutor(1) as threads, pytest.raises(StoreError) as caught:
        if mode == "sync":
            threads.submit(once.run, "key", pytest.fail).result(PATIENCE)
        else:
            asyncio.run(asyncio.wait_for(once.run_async("key", pytest.fail), PATIENCE))
    assert caught.value.transient
