"""Those who wait for a connection get it in their order: threads, coroutines, signal handlers and forked children."""

import asyncio
import os
import signal
import threading
import time

import pytest

from onceward import StoreError
from onceward.core.drivers import drive
from onceward.stores import open_store
from onceward.stores.postgres.queries import RawQuery

NAME = RawQuery("SELECT 'done'")


@pytest.fixture
def store(schema):
    """A ledger with one connection."""
    store = open_store(f"{schema}&pool=1&timeout=5")
    drive(store.load("?"), store)
    yield store
    store.close()


@pytest.fixture
def busy(store):
    """Keep the connection busy for some seconds."""
    threads = []

    def keep(seconds):
        thread = threading.Thread(target=store.exchange, args=[RawQuery(f"SELECT pg_sleep({seconds})::text")])
        thread.start()
        threads.append(thread)
        while store.plain.conduit._pool.idle:
            time.sleep(0.001)

    yield keep
    for thread in threads:
        thread.join()


def waiting(store):
    return len(store.plain.conduit._pool.line._places)


def test_threads_get_a_connection_in_their_order(store, busy):
    busy(3)
    times, threads = {}, []

    def ask(number):
        ((times[number],),) = store.exchange(RawQuery("SELECT date_part('epoch', clock_timestamp())"))

    for number in range(12):
        threads.append(threading.Thread(target=ask, args=[number]))
        threads[-1].start()
        while waiting(store) <= number:
            time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert sorted(times, key=times.__getitem__) == list(range(12))


def test_coroutines_get_a_connection_in_their_order(store, busy):
    order = []

    async def ask(number):
        await store.exchange_async(NAME)
        order.append(number)

    async def use():
        await asyncio.gather(*[ask(number) for number in range(12)])

    busy(0.5)
    asyncio.run(use())
    assert order == list(range(12))


def test_a_cancelled_waiter_keeps_nobody_waiting(store, busy):
    async def use():
        first = asyncio.ensure_future(store.exchange_async(NAME))
        second = asyncio.ensure_future(store.exchange_async(NAME))
        await asyncio.sleep(0.1)
        first.cancel()
        return await second

    busy(0.3)
    assert asyncio.run(use()) == [["done"]]


def test_a_busy_event_loop_at_the_head_keeps_no_thread_waiting(store, busy):
    answered = threading.Event()

    async def use():
        first = asyncio.ensure_future(store.exchange_async(NAME))
        await asyncio.sleep(0.1)
        thread = threading.Thread(target=lambda: store.exchange(NAME) and answered.set())
        thread.start()
        answered.wait(4)  # the loop is blocked
        thread.join()
        return await first

    busy(0.3)
    assert asyncio.run(use()) == [["done"]]
    assert answered.is_set()


def test_a_signal_handler_goes_before_what_it_has_interrupted(store, busy):
    met = []
    before = signal.signal(signal.SIGALRM, lambda *_: met.append(store.exchange(NAME)))
    try:
        busy(2)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        assert store.exchange(NAME) == [["done"]]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert met == [[["done"]]]


def test_a_child_forked_while_it_waits_opens_its_own(store, busy):
    pid = RawQuery("SELECT pg_backend_pid()")
    ((mine,),) = store.exchange(pid)
    children = []
    before = signal.signal(signal.SIGALRM, lambda *_: children.append(os.fork()))
    try:
        busy(2)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        ((met,),) = store.exchange(pid)
        if children == [0]:
            os._exit(0 if met != mine else 1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if children == [0]:
            os._exit(2)
    assert met == mine
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0


@pytest.mark.usefixtures("store")  # which has made the ledger: that can take longer than a request
def test_who_waits_too_long_is_told_and_leaves_the_line(schema):
    store = open_store(f"{schema}&pool=1&timeout=1")
    drive(store.load("?"), store)
    conduit = store.plain.conduit
    used = conduit._free()
    with pytest.raises(StoreError, match="connections are in use for 1 s"):
        store.exchange(NAME)
    assert waiting(store) == 0
    used.home.give_back(used)
    assert store.exchange(NAME) == [["done"]]
    store.close()
