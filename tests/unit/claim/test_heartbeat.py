"""Handlers that take longer than their lease keep it; those that do not pay nothing. In real time: it is about time."""

import asyncio
import gc
import logging
import os
import threading
import time
import weakref

import pytest

from onceward import Busy, LeaseLost, Once, OncewardError, StoreError, current
from onceward.claim import heartbeat
from onceward.core.clock import boottime
from onceward.core.record import COMPLETED
from onceward.stores.memory import MemoryStore
from onceward.testing.faults import Faults, fail_after, fail_before

pytestmark = [pytest.mark.sampled(once=1), pytest.mark.slow]

LEASE = 0.9  # seconds: short for us, and long enough for a machine that does much else
LONGER = 1.2


class Counting(MemoryStore):
    def __init__(self):
        super().__init__()
        self.requests = 0
        self.down = False

    def exchange(self, request):
        self.requests += 1
        if self.down:
            raise StoreError("away", transient=True)
        return super().exchange(request)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """A heartbeat of the test's own, whose thread ends soon after it."""
    monkeypatch.setattr(heartbeat, "IDLE", 0.2)
    monkeypatch.setattr(heartbeat, "HEARTBEAT", heartbeat.Heartbeat())


@pytest.fixture(params=["memory", "sqlite"])
def once(request, tmp_path):
    made = Once("memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/ledger.db", lease=LEASE)
    yield made
    made.close()


def in_new_thread(function):
    """Run as another worker would: without the context of the handler."""
    outcome = []

    def run():
        try:
            outcome.append((function(), None))
        except Exception as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    value, error = outcome[0]
    if error:
        raise error
    return value


def test_a_long_handler_keeps_its_claim(once):
    def handle():
        fence = current().fence
        for _ in range(12):
            time.sleep(LONGER / 12)
            assert not current().lost
            with pytest.raises(Busy):
                in_new_thread(lambda: once.run("k", handle))
        assert current().fence == fence
        return "mine"

    assert once.run("k", handle) == "mine"
    assert next(once.ledger.records())[0].attempts == 1


def test_a_coroutine_that_blocks_its_loop_keeps_its_claim(once):
    async def handle():
        time.sleep(LONGER)  # blocks the loop
        assert not current().lost
        return "mine"

    assert asyncio.run(once.run_async("k", handle)) == "mine"


def test_a_bare_claim_is_not_renewed(once):
    claim = once.acquire("k")
    time.sleep(LONGER)
    assert claim.lost
    assert once.acquire("k").attempt == 2


def test_short_handlers_start_no_renewals():
    store = Counting()
    once = Once(store, lease=60)
    for number in range(100):
        once.run(number, int)
    assert store.requests == 200


def test_many_claims_are_renewed_together():
    store = Counting()
    once = Once(store, lease=LEASE)
    lost = []
    barrier = threading.Barrier(50)

    def handle():
        barrier.wait()
        time.sleep(1.5)
        lost.append(current().lost)

    threads = [threading.Thread(target=once.run, args=(number, handle)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost == [False] * 50


@pytest.mark.parametrize("fault", [fail_before(), fail_after()], ids=lambda fault: fault.kind.name)
def test_heartbeats_go_on_when_the_store_was_away_for_a_while(fault):
    away = threading.Event()
    store = Faults(MemoryStore(), lambda ask: fault if away.is_set() else None)
    with Once(store, lease=1.5).claim("key") as claim:
        away.set()
        time.sleep(0.8)  # the first beat is due after 0.5 s
        assert not claim.lost
        away.clear()
        time.sleep(1.0)
        assert not claim.lost
    assert claim.record.status == COMPLETED


def test_when_the_store_stays_away_handler_sees_that_its_lease_is_over():
    away = threading.Event()
    store = Faults(MemoryStore(), lambda ask: fail_before() if away.is_set() else None)
    with Once(store).claim("key", lease=0.6) as held:
        away.set()
        while not held.lost:
            time.sleep(0.01)
        assert 2 < sum(ask.verb == "swap_many" for ask in store.asked) < 60
        away.clear()


def test_a_store_that_stays_away_loses_claim_before_takeover_may_begin():
    store = Counting()
    once = Once(store, lease=0.3)

    def handle():
        store.down = True
        until = store.records[current().record.key].lease_until
        now, lost = 0.0, False
        while not lost:
            time.sleep(0.001)
            now, lost = boottime(), current().lost
            assert lost or now < until
        store.down = False

    once.run("k", handle)


@pytest.mark.parametrize("how", ["park", "clear"])
def test_a_key_that_operator_takes_away_is_lost_and_not_asked_for_again(how):
    store = Counting()
    once = Once(store, lease=0.6)

    def handle():
        getattr(once.ledger, how)(current().record.key, live=True)
        before = store.requests
        time.sleep(0.45)
        assert store.requests - before < 10
        assert current().lost

    with pytest.raises(LeaseLost):
        once.run("k", handle)


def test_the_thread_ends_when_there_is_nothing_to_do_and_comes_back():
    once = Once(MemoryStore(), lease=0.6)

    def handle():
        time.sleep(0.8)
        return current().lost

    earlier = set(threading.enumerate())

    def beating():
        return [t for t in threading.enumerate() if t.name == "onceward-heartbeat" and t not in earlier]

    for key in "ab":
        assert once.run(key, handle) is False
        end = time.monotonic() + 5
        while beating() and time.monotonic() < end:
            time.sleep(0.05)
        assert not beating()


def test_a_thread_that_cannot_be_started_does_not_end_all_heartbeats(monkeypatch):
    once = Once(MemoryStore(), lease=LEASE)
    start = threading.Thread.start

    def refuse(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        try:
            once.run("a", int)
        except (RuntimeError, OncewardError):
            assert "IN_PROGRESS" not in [record.status for record in once.store.records.values()]
    assert threading.Thread.start is start

    def handle():
        time.sleep(LONGER)
        return current().lost

    assert once.run("b", handle) is False


def test_handlers_in_a_forked_child_are_renewed_too(tmp_path):
    once = Once(f"sqlite:///{tmp_path}/ledger.db", lease=LEASE)

    def handle():
        time.sleep(LONGER)
        return current().lost

    assert once.run("before", handle) is False
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if once.run("child", handle) is False else 2
        finally:
            os._exit(code)
    assert once.run("parent", handle) is False
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    once.close()


def test_a_handler_that_forks_keeps_its_claim_and_child_does_not_renew_it(tmp_path):
    once = Once(f"sqlite:///{tmp_path}/ledger.db", lease=LEASE)

    def handle():
        child = os.fork()
        if not child:
            time.sleep(LONGER)
            os._exit(0)
        os.waitpid(child, 0)
        return current().lost

    assert once.run("k", handle) is False
    once.close()


def test_claims_that_are_forgotten_are_not_kept_in_memory():
    once = Once(MemoryStore(), lease=60)

    class Big:
        pass

    def handle(big):
        return None

    big = Big()
    alive = weakref.ref(big)
    once.run("k", handle, big)
    del big
    gc.collect()
    assert alive() is None
    assert heartbeat.HEARTBEAT._claims == {}


class Choosy(MemoryStore):
    """Fails to renew the key "bad", and all that are asked for together with it."""

    def __init__(self, transient):
        super().__init__()
        self.transient = transient
        self.asked = []

    def swap_many(self, pairs):
        keys = [write.key for write, _ in pairs]
        self.asked.append(keys)
        if any("bad" in key for key in keys):
            raise StoreError("this record cannot be read", transient=self.transient)
        return (yield from super().swap_many(pairs))


@pytest.mark.parametrize("transient", [False, True], ids=["lasting", "transient"])
def test_a_claim_that_cannot_be_renewed_takes_no_other_with_it(transient, caplog):
    store = Choosy(transient)
    once = Once(store, lease=LEASE)
    lost = {}
    barrier = threading.Barrier(6)

    def handle(key):
        barrier.wait()
        time.sleep(1.8)
        lost[key] = current().lost

    def work(key):
        try:
            once.run(key, handle, key)
        except LeaseLost:
            pass

    keys = ["1", "2", "bad", "3", "4", "5"]
    threads = [threading.Thread(target=work, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost == {key: key == "bad" for key in keys}
    warned = [record for record in caplog.records if record.name == "onceward"]
    assert len(warned) == (0 if transient else 1)
    if warned:
        assert warned[0].levelno == logging.WARNING
        assert "bad: its lease cannot be renewed" in warned[0].getMessage()
        assert "this record cannot be read" in warned[0].getMessage()


def test_a_store_that_hangs_holds_up_no_other():
    hanging, healthy = Choosy(transient=True), MemoryStore()
    free, hangs = threading.Event(), threading.Event()

    def hang(pairs):
        hangs.set()
        free.wait(60)
        raise StoreError("at last", transient=True)
        yield

    hanging.swap_many = hang
    with Once(hanging, lease=LEASE).claim("a") as one, Once(healthy, lease=LEASE).claim("b") as other:
        assert hangs.wait(60)
        time.sleep(LONGER)
        assert one.lost
        assert not other.lost
        free.set()
        one.let_go()


def test_a_store_that_hung_is_asked_again_when_it_answers():
    store = Choosy(transient=True)
    hangs = threading.Event()
    asking = store.swap_many

    def hang(pairs):
        hangs.set()
        time.sleep(0.2)
        store.swap_many = asking
        raise StoreError("at last", transient=True)
        yield

    store.swap_many = hang
    with Once(store, lease=LEASE).claim("a") as claim:
        assert hangs.wait(60)
        time.sleep(LONGER)
        assert not claim.lost


def test_a_store_is_not_kept_alive():
    once = Once(MemoryStore(), lease=0.6)

    def handle():
        time.sleep(0.8)
        return current().lost

    assert once.run("k", handle) is False
    alive = weakref.ref(once.store)
    del once
    end = time.monotonic() + 5
    while alive() is not None and time.monotonic() < end:
        time.sleep(0.01)
        gc.collect()
    assert alive() is None


def test_without_threads_for_the_stores_the_timer_renews(monkeypatch):
    start = threading.Thread.start

    def refuse(self):
        if self.name == "onceward-renewal":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with Once(MemoryStore(), lease=LEASE).claim("a") as one, Once(MemoryStore(), lease=LEASE).claim("b") as other:
        time.sleep(LONGER)
        assert not one.lost
        assert not other.lost


@pytest.mark.parametrize("is_block", [False, True])
def test_a_handler_whose_event_loop_is_closed_is_no_longer_renewed(once, is_block):
    named = once.using(name="n", on_busy=10 * LEASE)

    async def handle():
        await asyncio.sleep(60)

    async def block():
        async with named.claim("k"):
            await handle()

    loop = asyncio.new_event_loop()
    task = loop.create_task(block() if is_block else named.run_async("k", handle))
    loop.run_until_complete(asyncio.sleep(0.1))
    loop.close()
    with named.claim("k") as claim:
        assert claim.attempt == 2
    assert not task.done()  # so it is not yet garbage
    task._log_destroy_pending = False
    task.get_coro().close()


def test_an_interrupted_handler_is_no_longer_renewed():
    once = Once(MemoryStore(), lease=0.2)

    def handle():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        once.run("k", handle)
    time.sleep(0.3)
    assert once.using(name=f"{__name__}.{handle.__qualname__}").acquire("k").attempt == 2


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
