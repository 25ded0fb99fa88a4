"""Connections that die, freeze, are inherited by a fork or cancelled; PgBouncer; and what a duplicate costs."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from onceward import StoreError
from onceward.core.drivers import drive, drive_async
from onceward.core.record import COMPLETED
from onceward.stores import open_store
from onceward.stores.postgres.queries import RawQuery
from onceward.testing.bench import claim_of, next_of
from stores.line_cases import lose_the_answer_of

PID = RawQuery("SELECT pg_backend_pid()")


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


def make(schema):
    """Make the ledger, which can take longer than a request."""
    store = open_store(schema)
    drive(store.load("?"), store)
    store.close()


@pytest.fixture
def frozen(schema):
    """A store whose statements may take two seconds, and what freezes the session behind it."""
    make(schema)
    store = open_store(f"{schema}&timeout=2")
    drive(store.load("?"), store)
    frozen = []

    def freeze(rows):
        frozen.append(rows[0][0])
        os.kill(frozen[0], signal.SIGSTOP)

    yield store, freeze
    os.kill(frozen[0], signal.SIGCONT)
    store.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_frozen_server_does_not_hold_a_caller(frozen, mode):
    store, freeze = frozen
    with asyncio.Runner() as runner:

        def run(steps):
            return drive(steps, store) if mode == "sync" else runner.run(drive_async(steps, store))

        freeze(store.exchange(PID) if mode == "sync" else runner.run(store.exchange_async(PID)))
        with pytest.raises(StoreError, match=r"not answered for 2 s") as caught:
            run(store.load("key"))
        assert caught.value.transient
        assert run(store.insert(claim_of("key", "a"))).won  # on another connection


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


def test_forked_children_share_no_connection(store):
    use_at_once(store, 3)
    ((mine,),) = store.exchange(PID)
    read, write = os.pipe()
    children = []
    for number in range(8):
        child = os.fork()
        if not child:
            code = 1
            try:
                for turn in range(10):
                    assert drive(store.insert(claim_of(f"{number} {turn}", "a")), store).won
                ((pid,),) = store.exchange(PID)
                os.write(write, f"{pid}\n".encode())
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    for _ in range(20):  # the parent goes on meanwhile
        drive(store.load("key"), store)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 8
    os.close(write)
    with os.fdopen(read) as told:
        theirs = [int(line) for line in told]
    assert len({*theirs, mine}) == 9
    assert store.exchange(PID) == [(mine,)]  # no child has closed it


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
