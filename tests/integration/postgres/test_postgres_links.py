"""Connections that die, freeze, are inherited by a fork or cancelled; PgBouncer; and what a duplicate costs."""

import asyncio
import contextlib
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from onceward import StoreError
from onceward.core.drivers import drive
from onceward.core.record import COMPLETED
from onceward.stores import open_store
from onceward.stores.postgres.queries import RawQuery
from onceward.testing.bench import claim_of, next_of
from stores.line_cases import lose_the_answer_of


def end_sessions(postgres, name):
    """End the sessions of that name."""
    postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", name)
    time.sleep(0.1)


def use_at_once(store, number):
    """Open that many connections, by that many statements at once."""
    with ThreadPoolExecutor(number) as pool:
        list(pool.map(lambda _: store.exchange(RawQuery("SELECT pg_sleep(0.2)::text")), range(number)))


def test_stale_connections_cost_no_failed_request(schema, postgres):
    store = open_store(f"{schema}&application_name=stale-links")
    drive(store.load("?"), store)
    use_at_once(store, 8)
    end_sessions(postgres, "stale-links")
    told = []
    store.observe(told.append)
    assert drive(store.insert(claim_of("key", "a")), store).won
    assert {one.error for one in told} == {""}
    store.close()


@pytest.mark.parametrize(
    "change",
    [
        # As a pooler or another session does it: psycopg must not see it.
        "DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$",
        "DO $$ BEGIN ALTER TABLE {table} ALTER COLUMN error TYPE varchar; END $$",
        "SET default_transaction_read_only = on",  # as on a server that was a standby, or closed for maintenance
    ],
)
def test_a_session_that_has_become_unfit_is_left(change, schema):
    store = open_store(f"{schema}&lanes=1")
    ask = claim_of("before")
    assert drive(store.insert(ask), store).won
    assert drive(store.insert(ask), store).record.key == "before"
    store.exchange(RawQuery(change.format(table=store.names.table)))
    for key in ("one", "two", "three"):
        with contextlib.suppress(StoreError):  # a read-only server is said, once
            drive(store.insert(claim_of(key)), store)
    assert drive(store.insert(claim_of("last")), store).won
    store.close()


@pytest.mark.parametrize("what", ["claims", "ends"])
def test_who_waited_knows_its_own_write_again_when_the_answer_to_a_batch_is_lost(what, schema, postgres, proxy):
    url = schema.replace(f":{postgres.port}", f":{proxy.port}")
    sleep = RawQuery("SELECT pg_sleep(0.3)::text")
    assert set(lose_the_answer_of(what, f"{url}&lanes=1", proxy, sleep).values()) == {1}


def test_a_cancelled_statement_leaves_no_answer_for_the_next(store):
    async def use():
        asking = asyncio.ensure_future(store.exchange_async(RawQuery("SELECT 'late', pg_sleep(0.3)::text")))
        await asyncio.sleep(0.1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        return await asyncio.gather(*[store.exchange_async(RawQuery("SELECT 'next'")) for _ in range(5)])

    assert asyncio.run(use()) == [[("next",)]] * 5


def test_an_interrupted_statement_leaves_no_answer_for_the_next(store):
    def stop(*_):
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(InterruptedError):
            store.exchange(RawQuery("SELECT 'late', pg_sleep(0.4)::text"))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert store.exchange(RawQuery("SELECT 'next'")) == [("next",)]


def wrote(store, verb):
    """Run a verb's statement, and tell whether it wrote to the server's log."""
    query = next(verb)
    plan = store.exchange(RawQuery(f"EXPLAIN (ANALYZE, WAL) {query.text}", *query.values))
    return "WAL: records" in str(plan)


def test_a_duplicate_writes_nothing(store):
    assert wrote(store, store.insert(claim_of("key", "a")))
    held = drive(store.load("key"), store).record
    assert wrote(store, store.swap(next_of(held, status=COMPLETED, result="1"), held))
    for _ in range(3):  # the first read may tidy a page
        drive(store.load("key"), store)
    assert not wrote(store, store.insert(claim_of("key", "b")))
    assert not wrote(store, store.insert(claim_of("key", "b")))
    assert not wrote(store, store.insert_many([claim_of("key", "b")]))
    assert not wrote(store, store.insert_many([claim_of("key", "b"), claim_of("key", "c")]))
    assert not wrote(store, store.swap(next_of(held), held))
    assert not wrote(store, store.swap_many([(next_of(held), held)]))


def test_batches_over_the_same_keys_do_not_deadlock(schema):
    stores, start = [open_store(schema) for _ in range(2)], threading.Barrier(4)
    held = [drive(stores[0].insert(claim_of(f"k{i}", "a", lease=0.0)), stores[0]).record for i in range(50)]

    def take(number):
        store, seen = stores[number % 2], held[:: 1 - 2 * (number % 2)]
        start.wait()
        pairs = [(next_of(one, owner=f"o{number}", beat=0, fence=one.fence + 1), one) for one in seen]
        new = [claim_of(f"n{one.key}", f"o{number}") for one in seen]
        return sum(
            reply.won for verb in (store.swap_many(pairs), store.insert_many(new)) for reply in drive(verb, store)
        )

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(take, range(4))) == 100
    for store in stores:
        store.close()
