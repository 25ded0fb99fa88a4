"""Handlers that take longer than their lease keep it; those that do not pay nothing. In real time: it is about time."""

import asyncio
import os
import threading
import time

import pytest

from onceward import Busy, LeaseLost, Once, OncewardError, StoreError, current, heartbeat
from onceward.stores.memory import MemoryStore


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
    made = Once("memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/ledger.db", lease=0.3)
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
        for _ in range(9):
            time.sleep(0.1)
            assert not current().lost
            with pytest.raises(Busy):
                in_new_thread(lambda: once.run("k", handle))
        assert current().fence == fence
        return "mine"

    assert once.run("k", handle) == "mine"
    assert next(once.ledger.records())[0].attempts == 1


def test_a_coroutine_that_blocks_its_loop_keeps_its_claim(once):
    async def handle():
        time.sleep(0.9)  # blocks the loop
        assert not current().lost
        return "mine"

    assert asyncio.run(once.run_async("k", handle)) == "mine"


def test_a_with_block_keeps_its_claim(once):
    with once.claim("k") as claim:
        time.sleep(0.7)
        assert not claim.lost


def test_a_bare_claim_is_not_renewed(once):
    claim = once.acquire("k")
    time.sleep(0.4)
    assert claim.lost
    assert once.acquire("k").attempt == 2


def test_heartbeat_zero_never_renews():
    once = Once(MemoryStore(), lease=0.2, heartbeat=0)

    def handle():
        time.sleep(0.3)
        return current().lost

    assert once.run("k", handle) is True


def test_short_handlers_start_no_renewals():
    store = Counting()
    once = Once(store, lease=60)
    for number in range(100):
        once.run(number, int)
    assert store.requests == 200


def test_many_claims_are_renewed_together():
    store = Counting()
    once = Once(store, lease=0.6)
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


def test_renewals_that_fail_are_retried_until_the_lease_is_over():
    store = Counting()
    once = Once(store, lease=0.6)

    def handle():
        time.sleep(0.15)
        store.down = True
        time.sleep(0.25)
        store.down = False
        time.sleep(0.5)
        return current().lost

    assert once.run("k", handle) is False


def test_a_store_that_stays_away_makes_the_claim_lost_before_anybody_may_take_it_over():
    store = Counting()
    once = Once(store, lease=0.3)

    def handle():
        store.down = True
        until = store.records[current().record.key].lease_until
        while not current().lost:
            time.sleep(0.001)
        assert time.clock_gettime(time.CLOCK_BOOTTIME) < until
        store.down = False

    once.run("k", handle)


@pytest.mark.parametrize("how", ["park", "clear"])
def test_a_key_that_an_operator_takes_away_is_lost_and_not_asked_for_again_and_again(how):
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
    once = Once(MemoryStore(), lease=0.15)

    def handle():
        time.sleep(0.3)
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
    once = Once(MemoryStore(), lease=0.3)
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
        time.sleep(0.5)
        return current().lost

    assert once.run("b", handle) is False


def test_handlers_in_a_forked_child_are_renewed_too(tmp_path):
    once = Once(f"sqlite:///{tmp_path}/ledger.db", lease=0.3)

    def handle():
        time.sleep(0.6)
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


def test_a_handler_that_forks_keeps_its_claim_and_the_child_does_not_renew_it(tmp_path):
    once = Once(f"sqlite:///{tmp_path}/ledger.db", lease=0.3)

    def handle():
        child = os.fork()
        if not child:
            time.sleep(0.8)
            os._exit(0)
        os.waitpid(child, 0)
        return current().lost

    assert once.run("k", handle) is False
    once.close()


def test_claims_that_are_forgotten_are_not_kept_in_memory():
    import gc
    import weakref

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


def test_an_interrupted_handler_is_no_longer_renewed():
    once = Once(MemoryStore(), lease=0.2)

    def handle():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        once.run("k", handle)
    time.sleep(0.3)
    assert once.using(name=f"{__name__}.{handle.__qualname__}").acquire("k").attempt == 2
