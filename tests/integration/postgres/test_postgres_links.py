"""Connections that die, freeze, are inherited by a fork or cancelled; PgBouncer; and what a duplicate costs."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from onceward import Once, StoreError
from onceward.core.drivers import drive, drive_async
from onceward.core.record import COMPLETED, PARKED
from onceward.stores import open_store
from onceward.stores.postgres import lane
from onceward.stores.postgres.queries import RawQuery
from onceward.testing.bench import claim_of, next_of
from servers.needs import free_port
from servers.postgres import PgBouncer, Postgres
from stores.line_cases import lose_the_answer_of

PID = RawQuery("SELECT pg_backend_pid()")


@pytest.fixture
def store(schema):
    store = open_store(schema)
    drive(store.load("?"), store)
    yield store
    store.close()


def end_sessions(postgres, name):
    """End the sessions of that name."""
    postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", name)
    time.sleep(0.1)


def use_at_once(store, number):
    """Open that many connections, by that many statements at once."""
    start = threading.Barrier(number)

    def use():
        start.wait()
        store.exchange(RawQuery("SELECT pg_sleep(0.2)::text"))

    threads = [threading.Thread(target=use) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


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


class Stop(BaseException):
    """Raised by a signal handler."""


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


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_session_whose_settings_were_refused_is_not_used(schema, monkeypatch, mode):
    make(schema)
    store = open_store(f"{schema}&lanes=1")
    with asyncio.Runner() as runner:

        def run(request):
            return store.exchange(request) if mode == "sync" else runner.run(store.exchange_async(request))

        with monkeypatch.context() as patched:
            patched.setattr(lane, "_SETTINGS", "SELECT set_config('nothing', '1', false)")
            with pytest.raises(StoreError, match="nothing"):
                run(PID)
        ((setting, pid),) = run(RawQuery("SELECT current_setting('enable_seqscan'), pg_backend_pid()"))
        assert setting == "off"
        assert run(PID) == [(pid,)]
        store.close()


def test_a_server_that_takes_no_more_connections_costs_none_that_are_open():
    server = Postgres(max_connections=6, superuser_reserved_connections=0)
    once = Once(f"{server.url}?lanes=8&timeout=5", name="n")
    seen = []

    def work(number):
        def body():
            time.sleep(0.01)
            seen.append(number)

        once.run(number, body)

    try:
        make(server.url)
        with contextlib.ExitStack() as others:
            for _ in range(3):
                others.enter_context(psycopg.connect(server.url))
            with ThreadPoolExecutor(12) as pool:
                for done in [pool.submit(work, number) for number in range(200)]:
                    done.result()
        assert sorted(seen) == list(range(200))
    finally:
        once.close()
        server.stop()


@pytest.mark.parametrize("what", ["claims", "ends"])
def test_who_waited_knows_its_own_write_again_when_the_answer_to_a_batch_is_lost(what, schema, postgres, proxy):
    url = schema.replace(f":{postgres.port}", f":{proxy.port}")
    sleep = RawQuery("SELECT pg_sleep(0.3)::text")
    assert set(lose_the_answer_of(what, f"{url}&lanes=1", proxy, sleep).values()) == {1}


def test_a_pool_has_no_more_connections_than_it_may(schema):
    store = open_store(f"{schema}&lanes=3")
    drive(store.load("?"), store)
    pids = []

    def use():
        pids.extend(row[0] for row in store.exchange(RawQuery("SELECT pg_backend_pid(), pg_sleep(0.05)::text")))

    threads = [threading.Thread(target=use) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(pids), len(set(pids))) == (12, 3)
    store.close()


def make(schema):
    """Make the ledger, which can take longer than a request."""
    store = open_store(schema)
    drive(store.load("?"), store)
    store.close()


def test_kept_errors_of_a_lost_server_do_not_use_up_the_pool(schema, postgres):
    make(schema)
    store = open_store(f"{schema}&lanes=3&timeout=1&application_name=kept-errors")
    kept = []
    for _ in range(4):
        drive(store.load("key"), store)
        sleep = RawQuery("SELECT pg_sleep(30)::text")
        timer = threading.Timer(0.3, end_sessions, (postgres, "kept-errors"))
        timer.start()
        with pytest.raises(StoreError) as caught:
            store.exchange(sleep)
        kept.append(caught.value)  # with its traceback
        timer.join()
    assert drive(store.insert(claim_of("key", "a")), store).won
    store.close()


def test_kept_errors_of_an_absent_server_do_not_use_up_the_pool(postgres):
    store = open_store(f"postgresql://nobody@127.0.0.1:{free_port()}/test?lanes=2&timeout=1")
    kept = []
    for _ in range(4):
        with pytest.raises(StoreError, match="refused") as caught:
            drive(store.load("key"), store)
        kept.append(caught.value)


def test_kept_errors_of_coroutines_do_not_use_up_the_pool(postgres):
    store = open_store(f"postgresql://nobody@127.0.0.1:{free_port()}/test?lanes=2&timeout=1")

    async def use():
        replies = [
            await asyncio.gather(drive_async(store.load("key"), store), return_exceptions=True) for _ in range(4)
        ]
        return [str(error) for (error,) in replies]

    assert all("refused" in text for text in asyncio.run(use()))


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


def test_a_frozen_server_does_not_hold_a_blocking_caller(frozen):
    store, freeze = frozen
    freeze(store.exchange(PID))
    with pytest.raises(StoreError, match=r"not answered for 2 s") as caught:
        drive(store.load("key"), store)
    assert caught.value.transient
    assert drive(store.insert(claim_of("key", "a")), store).won  # on another connection


def test_a_frozen_server_does_not_hold_a_coroutine(frozen):
    store, freeze = frozen

    async def use():
        freeze(await store.exchange_async(PID))
        with pytest.raises(StoreError, match=r"not answered for 2 s"):
            await drive_async(store.load("key"), store)
        return await drive_async(store.insert(claim_of("key", "a")), store)

    assert asyncio.run(use()).won


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
    class Stop(Exception):
        pass

    def stop(*_):
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Stop):
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


def test_a_child_forked_while_threads_wait_has_connections_of_its_own(schema):
    store = open_store(f"{schema}&lanes=1&timeout=10")
    drive(store.load("?"), store)
    slow = RawQuery("SELECT pg_sleep(2)::text")
    threads = [threading.Thread(target=store.exchange, args=[slow]) for _ in range(2)]
    for thread in threads:
        thread.start()
    while not store.conduit._here.threads._line:
        time.sleep(0.01)
    child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            drive(store.load("key"), store)
        except StoreError:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for thread in threads:
        thread.join()
    store.close()


def wrote(store, verb):
    """Run a verb's statement, and tell whether it wrote to the server's log."""
    query = next(verb)
    plan = store.exchange(RawQuery(f"EXPLAIN (ANALYZE, WAL) {query.text}", *query.values))
    return "WAL: records" in str(plan)


def test_a_failure_whose_text_has_a_nul_is_recorded(store):
    once = Once(store, on_error="park", name="name")

    def handle():
        raise ValueError("cut \0 off")

    with pytest.raises(ValueError, match="off"):
        once.run("key", handle)
    record = drive(store.load("name:key"), store).record
    assert (record.status, record.error) == (PARKED, "ValueError: cut \\0 off")


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
    stores = [open_store(schema) for _ in range(2)]
    held = [drive(stores[0].insert(claim_of(f"k{i}", "a", lease=0.0)), stores[0]).record for i in range(50)]
    wins, start = [], threading.Barrier(4)

    def take(number, seen):
        store = stores[number % 2]
        start.wait()
        pairs = [(next_of(one, owner=f"o{number}", beat=0, fence=one.fence + 1), one) for one in seen]
        new = [claim_of(f"n{one.key}", f"o{number}") for one in seen]
        wins.append(sum(reply.won for reply in drive(store.swap_many(pairs), store)))
        wins.append(sum(reply.won for reply in drive(store.insert_many(new), store)))

    threads = [threading.Thread(target=take, args=[n, held[:: 1 - 2 * (n % 2)]]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(wins) == 100
    for store in stores:
        store.close()


def test_a_crash_of_the_server_loses_nothing_that_was_answered():
    server, answered, over = Postgres(), [], threading.Event()
    store = open_store(server.url)

    def work():
        number = 0
        while not over.is_set():
            number += 1
            try:
                held = drive(store.insert(claim_of(f"k{number}", "a")), store).record
                answered.append(drive(store.swap(next_of(held, status=COMPLETED), held), store).record)
            except StoreError:
                time.sleep(0.01)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(2):
            before = len(answered)
            while len(answered) < before + 20:
                assert thread.is_alive()
                time.sleep(0.01)
            server.kill()
            server.start()
        over.set()
        thread.join()
        assert [drive(store.load(record.key), store).record for record in answered] == answered
    finally:
        over.set()
        thread.join()
        store.close()
        server.stop()


@pytest.fixture
def bouncer(postgres):
    bouncer = PgBouncer(postgres)
    yield bouncer
    bouncer.stop()


@pytest.mark.parametrize("postgres", [Postgres], indirect=True, ids=["15"])
def test_it_works_behind_a_pooler_of_transactions(bouncer, schema):
    query = schema.partition("?")[2]
    stores = [open_store(f"{bouncer.url}?{query}") for _ in range(3)]  # on two sessions of the server
    wins, start = [], threading.Barrier(6)

    def use(number):
        store = stores[number % 3]
        start.wait()
        for turn in range(20):
            reply = drive(store.insert(claim_of(f"k{turn}", f"o{number}")), store)
            if reply.won:
                wins.append(drive(store.swap(next_of(reply.record, status=COMPLETED), reply.record), store).won)
            drive(store.insert_many([claim_of(f"m{turn} {i}", f"o{number}") for i in range(3)]), store)

    threads = [threading.Thread(target=use, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wins == [True] * 20
    assert stores[0].exchange(RawQuery("SHOW lock_timeout")) == [("0",)]
    for store in stores:
        store.close()
