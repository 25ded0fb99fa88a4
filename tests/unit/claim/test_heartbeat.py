"""Handlers that take longer than their lease keep it; those that do not pay nothing. In real time: it is about time."""

import asyncio
import contextlib
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from faults.injected import Faults, fail_before
from fixtures import closing_fixture
from onceward import Busy, LeaseLost, Once, OncewardError, StoreError, current
from onceward.claim import heartbeat
from onceward.core.clock import boottime
from onceward.stores.memory import MemoryStore
from tables import each
from waiting import until

pytestmark = pytest.mark.slow

LEASE = 0.9  # seconds: short for us, and long enough for a machine that does much else
LONGER = 1.2


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """A heartbeat of the test's own, whose thread ends soon after it."""
    monkeypatch.setattr(heartbeat, "IDLE", 0.2)
    monkeypatch.setattr(heartbeat, "HEARTBEAT", heartbeat.Heartbeat())


once = closing_fixture(lambda tmp_path: Once(f"sqlite:///{tmp_path}/ledger.db", lease=LEASE))


def test_a_long_handler_keeps_its_claim(once):
    bare = once.acquire("bare")

    async def handle():
        fence = current().fence
        for _ in range(12):
            time.sleep(LONGER / 12)  # blocks the loop
            assert not current().lost
            with ThreadPoolExecutor(1) as other, pytest.raises(Busy):
                other.submit(once.acquire, "k", name=current().record.key.rpartition(":")[0]).result()
        assert current().fence == fence
        return "mine"

    assert asyncio.run(once.run_async("k", handle)) == "mine"
    assert bare.lost  # nobody renews it
    assert once.acquire("bare").attempt == 2


def test_a_store_that_stays_away_loses_claim_before_takeover_may_begin():
    store = Faults(MemoryStore(), lambda ask: None)
    once = Once(store, lease=0.3)

    def handle():
        store.plan = lambda ask: fail_before()
        until = store.store.records[current().record.key].lease_until
        now, lost = 0.0, False
        while not lost:
            time.sleep(0.001)
            now, lost = boottime(), current().lost
            assert lost or now < until
        store.plan = lambda ask: None

    once.run("k", handle)


@each("how", ["park", "clear"])
def test_a_key_that_operator_takes_away_is_lost_and_not_asked_for_again(how):
    store = Faults(MemoryStore(), lambda ask: None)
    once = Once(store, lease=0.6)

    def handle():
        getattr(once.ledger, how)(current().record.key, live=True)
        before = len(store.asked)
        time.sleep(0.45)
        assert len(store.asked) - before < 10
        assert current().lost

    with pytest.raises(LeaseLost):
        once.run("k", handle)


def test_the_thread_ends_when_there_is_nothing_to_do_and_comes_back():
    once = Once(MemoryStore(), lease=0.6)

    earlier = set(threading.enumerate())
    beating = lambda: [t for t in threading.enumerate() if t.name == "onceward-heartbeat" and t not in earlier]
    for key in "ab":
        with once.claim(key) as claim:
            time.sleep(0.8)
            assert not claim.lost
        until(lambda: not beating())


def test_a_thread_that_cannot_be_started_does_not_end_all_heartbeats(monkeypatch):
    once = Once(MemoryStore(), lease=LEASE)

    def refuse(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with contextlib.suppress(RuntimeError, OncewardError):
            once.run("a", int)
    assert "IN_PROGRESS" not in [record.status for record in once.store.records.values()]

    def handle():
        time.sleep(LONGER)
        return current().lost

    assert once.run("b", handle) is False


def test_handlers_in_a_forked_child_are_renewed_too(once):
    def handle():
        time.sleep(LONGER)
        return current().lost

    assert once.run("before", handle) is False
    child = os.fork()
    if not child:
        try:
            os._exit(0 if once.run("child", handle) is False else 2)
        finally:
            os._exit(1)
    assert once.run("parent", handle) is False
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Choosy(MemoryStore):
    """Fails to renew the key "bad", and all that are asked for together with it."""

    def __init__(self, transient):
        super().__init__()
        self.transient = transient

    def swap_many(self, pairs):
        if any("bad" in write.key for write, _ in pairs):
            raise StoreError("this record cannot be read", transient=self.transient)
        return (yield from super().swap_many(pairs))


@pytest.mark.parametrize("transient", [False, True], ids=["lasting", "transient"])
def test_a_claim_that_cannot_be_renewed_takes_no_other_with_it(transient, caplog):
    once = Once(Choosy(transient), lease=LEASE)
    lost = {}
    barrier = threading.Barrier(6)

    def handle(key):
        barrier.wait()
        time.sleep(1.8)
        lost[key] = current().lost

    keys = ["1", "2", "bad", "3", "4", "5"]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda key: once.run(key, handle, key), keys))
    assert lost == {key: key == "bad" for key in keys}
    warned = [record for record in caplog.records if record.name == "onceward"]
    assert [record.levelno for record in warned] == ([] if transient else [logging.WARNING])


def test_a_store_that_hangs_holds_up_no_other_and_is_asked_again_when_it_answers():
    hanging, healthy = MemoryStore(), MemoryStore()
    free, hangs, asking = threading.Event(), threading.Event(), hanging.swap_many

    def hang(pairs):
        hangs.set()
        free.wait(60)
        hanging.swap_many = asking
        raise StoreError("at last", transient=True)
        yield

    hanging.swap_many = hang
    with Once(hanging, lease=3 * LEASE).claim("a") as one, Once(healthy, lease=LEASE).claim("b") as other:
        assert hangs.wait(60)
        time.sleep(LONGER)
        assert not other.lost
        free.set()
        time.sleep(3 * LEASE)
        assert not one.lost


def test_without_threads_for_the_stores_the_timer_renews(monkeypatch):
    start = threading.Thread.start

    def refuse(self):
        if self.name == "onceward-renewal":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with Once(MemoryStore(), lease=LEASE).claim("a") as claim, Once(MemoryStore(), lease=LEASE).claim("b"):
        time.sleep(LONGER)
        assert not claim.lost


def test_a_handler_whose_event_loop_is_closed_is_no_longer_renewed(once):
    named = once.using(name="n", on_busy=10 * LEASE)
    begun = []

    async def handle():
        begun.append(1)
        await asyncio.sleep(60)

    loop = asyncio.new_event_loop()
    task = loop.create_task(named.run_async("k", handle))
    while not begun:
        loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    with named.claim("k") as claim:
        assert claim.attempt == 2
    assert not task.done()  # so it is not yet garbage
    task._log_destroy_pending = False
    task.get_coro().close()


@pytest.mark.parametrize("ending", ["complete", "release", "park"])
def test_a_renewal_that_comes_after_the_end_does_not_open_the_key_again(once, ending):
    claim, other = once.acquire("k"), once.acquire("other")
    getattr(claim, ending)()
    ended, _ = once.ledger.show("claim:k")
    heartbeat.renew([claim, other])
    assert once.ledger.show("claim:k")[0] == ended
    assert once.ledger.show("claim:other")[0].beat == 1
    assert claim.settled == ended.status
    assert not other.lost
