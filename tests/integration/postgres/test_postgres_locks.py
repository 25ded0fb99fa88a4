"""Locks of open transactions, connections that die, freeze or are cancelled, what a duplicate costs, and fences that only grow."""

import asyncio
import contextlib
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from onceward import Busy, Completed, Once, StoreError
from onceward.core.drivers import drive
from onceward.core.policy import Policy
from onceward.core.record import COMPLETED, RELEASED
from onceward.core.register import KeyLocked
from onceward.core.steps import Bid, Won, claim
from onceward.stores import open_store
from onceward.stores.postgres.queries import RawQuery
from onceward.testing.bench import claim_of, next_of
from stores.lost_cases import lose_the_answer_of


@pytest.fixture
def other(postgres, store):
    """Somebody's open transaction."""
    with psycopg.connect(postgres.url) as connection:
        yield connection
        connection.rollback()


def hold(other, store, key):
    other.execute(f"UPDATE {store.names.table} SET worker = 'me' WHERE key = %s", [key])


def insert(other, store, key):
    other.execute(
        f"INSERT INTO {store.names.table} (key, status, owner, fence, beat, lease_until, attempts, created_at) "
        "VALUES (%s, 'IN_PROGRESS', 'me', 1, 0, now() + interval '1 hour', 1, now())",
        [key],
    )


def claimed(store, count):
    return [reply.record for reply in drive(store.insert_many([claim_of(f"k{i}", "a") for i in range(count)]), store)]


def completing(held):
    return next_of(held, status=COMPLETED, result='{"a": 1}', keep=60.0), held


def are_locked(replies):
    return [type(reply) is KeyLocked or not reply.won for reply in replies]


def test_an_insert_does_not_wait_for_an_open_transaction_and_leaves_no_trace_in_its_session(store, other):
    insert(other, store, "k2")
    with pytest.raises(KeyLocked):
        drive(store.insert(claim_of("k2", "a")), store)
    replies = drive(store.insert_many([claim_of(f"k{i}", "a") for i in range(5)]), store)
    assert are_locked(replies) == [False, False, True, False, False]
    assert store.exchange(RawQuery("SHOW lock_timeout")) == [("6s",)]


def test_a_swap_does_not_wait_for_an_open_transaction_and_leaves_no_trace_in_its_session(store, other):
    held = claimed(store, 3)
    hold(other, store, "k1")
    with pytest.raises(KeyLocked):
        drive(store.swap(*completing(held[1])), store)
    assert are_locked(drive(store.swap_many([completing(one) for one in held]), store)) == [False, True, False]
    other.rollback()
    assert drive(store.swap(*completing(held[1])), store).won
    assert store.exchange(RawQuery("SHOW lock_timeout")) == [("6s",)]


@pytest.mark.parametrize("table", ["table", "meta"])
def test_a_locked_table_leaves_no_session_that_waits(postgres, schema, store, other, table):
    drive(store.insert(claim_of("before")), store)
    other.execute(f"LOCK TABLE {getattr(store.names, table)}")
    for _ in range(3):
        new = Once(open_store(f"{schema}&timeout=1"), name="n")
        with pytest.raises((Busy, StoreError)):
            new.run("k", lambda: 1)
        new.close()
    time.sleep(1.5)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND strpos(query, %s) > 0"
    assert postgres.sql(waiting, store.names.schema) == [(0,)]


def test_a_locked_table_is_no_busy_key(store, other):
    other.execute(f"LOCK TABLE {store.names.table} IN SHARE MODE")  # as CREATE INDEX does
    threading.Timer(2.5, other.rollback).start()
    assert Once(store, name="n", on_busy="skip").run("k", lambda: 1) == 1


def test_an_outcome_waits_for_a_locked_table(store, other):
    once = Once(store, name="n", lease=60)

    def work():
        other.execute(f"LOCK TABLE {store.names.table}")
        threading.Timer(2.5, other.rollback).start()
        return 1

    assert once.run("k", work) == 1
    with pytest.raises(Completed):
        once.acquire("k")


@pytest.mark.parametrize("verb", ["insert", "swap"])
def test_a_locked_key_in_the_line_holds_up_no_other(verb, schema, other, store):
    one_lane = open_store(f"{schema}&lanes=1")
    if verb == "insert":
        insert(other, store, "k3")
        asked = [one_lane.insert(claim_of(f"k{number}", "a")) for number in range(20)]
    else:
        held = claimed(one_lane, 20)
        hold(other, store, "k3")
        asked = [one_lane.swap(next_of(record), record) for record in held]
    drive(one_lane.load("?"), one_lane)
    ended = {}

    def write(number):
        with contextlib.suppress(KeyLocked):
            drive(asked[number], one_lane)
        ended[number] = time.monotonic()

    with ThreadPoolExecutor(21) as pool:
        pool.submit(one_lane.exchange, RawQuery("SELECT pg_sleep(0.5)::text"))
        time.sleep(0.1)
        list(pool.map(write, range(20)))
    locked = ended.pop(3)
    assert locked > max(ended.values())
    one_lane.close()


def test_duplicates_of_a_locked_key_are_busy_and_do_not_hold_the_pool(schema, other, store):
    once = Once(open_store(f"{schema}&lanes=2&timeout=10"))  # less than if each held a connection for a second
    insert(other, store, "name:slow")

    def ask(_):
        with pytest.raises(Busy) as caught:
            once.acquire("slow", name="name")
        return caught.value.retry_after

    with ThreadPoolExecutor(40) as pool:
        assert all(0 < after <= 1 for after in pool.map(ask, range(40)))
    once.close()


def test_a_waiting_handler_gets_the_result_after_the_commit(store, other):
    once = Once(store)
    insert(other, store, "name:key")
    other.execute(f"UPDATE {store.names.table} SET status = 'COMPLETED', result = '7' WHERE key = 'name:key'")
    timer = threading.Timer(1.5, other.commit)
    timer.start()
    with pytest.raises(Completed) as caught:
        once.acquire("key", name="name", on_busy=30)
    assert caught.value.result == 7
    timer.join()


@pytest.mark.parametrize(("end", "seen"), [("commit", (False, "me")), ("rollback", (True, "a"))])
def test_an_insert_that_waited_sees_the_winner_or_wins_after_a_rollback(store, other, end, seen):
    insert(other, store, "key")
    timer = threading.Timer(0.3, getattr(other, end))
    timer.start()
    reply = drive(store.insert(claim_of("key", "a")), store)
    timer.join()
    assert (reply.won, reply.record.owner) == seen


@pytest.mark.parametrize("many", [False, True])
def test_a_swap_that_waited_for_a_takeover_is_refused_with_it(many, store, other):
    (held,) = claimed(store, 1)
    other.execute(f"UPDATE {store.names.table} SET owner = 'me', fence = fence + 1")
    timer = threading.Timer(0.3, other.commit)
    timer.start()
    pair = completing(held)
    reply = drive(store.swap_many([pair]), store)[0] if many else drive(store.swap(*pair), store)
    timer.join()
    assert (reply.won, reply.record.owner, reply.record.fence) == (False, "me", held.fence + 1)


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_one_of_many_takes_at_every_isolation_level(level, schema):
    store = open_store(f"{schema}&options=-c%20default_transaction_isolation%3D{level.replace(' ', chr(92) + ' ')}")
    start = threading.Barrier(8)

    def take(number):
        bid = Bid("key", f"o{number}", None, Policy())
        start.wait()
        return drive(claim(store, bid), store)

    held = drive(store.insert(claim_of("key", "a")), store).record
    for turn in range(3):
        held = drive(store.swap(next_of(held, status=RELEASED, lease=0.0, error="boom"), held), store).record
        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(take, range(8 * turn, 8 * turn + 8)))
        (won,) = [outcome for outcome in outcomes if isinstance(outcome, Won)]
        assert won.record.fence > held.fence
        assert (won.record.attempts, won.record.error, won.before) == (turn + 2, "boom", held)
        assert {outcome.record.owner for outcome in outcomes} <= {won.record.owner, ""}  # "": its commit was slow
        held = won.record
    store.close()


def test_stale_connections_cost_no_failed_request(schema, postgres):
    store = open_store(f"{schema}&application_name=stale-links")
    drive(store.load("?"), store)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: store.exchange(RawQuery("SELECT pg_sleep(0.2)::text")), range(8)))
    postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'stale-links'")
    time.sleep(0.1)
    told = []
    store.observe(told.append)
    assert drive(store.insert(claim_of("key", "a")), store).won
    assert {one.error for one in told} == {""}
    store.close()


def test_an_outcome_waits_for_a_server_that_lets_this_role_in_again(store, sql):
    """PostgreSQL refuses it with FATAL, and a code that is not of a lost connection."""
    space, role = store.names.schema, f"role_{store.names.schema}"
    sql(f"CREATE ROLE {role} LOGIN")
    sql(f"GRANT USAGE ON SCHEMA {space} TO {role}")
    sql(f"GRANT ALL ON ALL TABLES IN SCHEMA {space} TO {role}")
    once = Once(store.url.replace("postgres@", f"{role}@"), name="n")
    back = threading.Timer(1.0, sql, [f"ALTER ROLE {role} LOGIN"])

    def lock_out():
        sql(f"ALTER ROLE {role} NOLOGIN")
        sql("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", role)
        back.start()
        return "made"

    assert once.run("k", lock_out) == "made"
    back.join()
    assert once.run("k", pytest.fail) == "made"
    once.close()


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


async def test_a_cancelled_statement_leaves_no_answer_for_the_next(store):
    asking = asyncio.ensure_future(store.exchange_async(RawQuery("SELECT 'late', pg_sleep(0.3)::text")))
    await asyncio.sleep(0.1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    told = await asyncio.gather(*[store.exchange_async(RawQuery("SELECT 'next'")) for _ in range(5)])
    assert told == [[("next",)]] * 5


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
        replies = [reply for verb in (store.swap_many(pairs), store.insert_many(new)) for reply in drive(verb, store)]
        return sum(reply.won for reply in replies if not isinstance(reply, KeyLocked))  # by another, on a slow machine

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(take, range(4))) == 100
    for store in stores:
        store.close()


@pytest.fixture
def stopping(store, postgres):
    """Stop every write of the owner "slow" for some time between its reading of the clock and the row."""
    name = f"{store.names.schema}.stopping"
    postgres.sql(
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF NEW.owner = 'slow' THEN PERFORM pg_sleep(1.5); END IF; RETURN NEW; END $$",
        database="test",
    )
    postgres.sql(
        f"CREATE TRIGGER stopping BEFORE INSERT ON {store.names.table} FOR EACH ROW EXECUTE FUNCTION {name}()",
        database="test",
    )


def begun(verb, store):
    """Run a verb in a thread; return what joins it and returns its reply."""
    replies = []
    thread = threading.Thread(target=lambda: replies.append(drive(verb, store)))
    thread.start()
    time.sleep(0.2)

    def reply():
        thread.join()
        return replies[0]

    return reply


def deleted_meanwhile(store):
    between = drive(store.insert(claim_of("key", "b")), store).record
    assert drive(store.delete(between), store).won
    return between


@pytest.mark.usefixtures("stopping")
@pytest.mark.parametrize("many", [False, True])
def test_a_claim_that_stops_before_its_write_has_the_larger_fence(store, many):
    write = claim_of("key", "slow")
    slow = begun(store.insert_many([write, claim_of("other", "b")]) if many else store.insert(write), store)
    between = deleted_meanwhile(store)
    reply = slow()[0] if many else slow()
    assert reply.won
    assert reply.record.fence > between.fence
    assert drive(store.load("key"), store).record == reply.record


@pytest.mark.usefixtures("stopping")
def test_a_stopped_claim_whose_reply_was_lost_has_the_larger_fence(store):
    write = claim_of("key", "slow")
    lost = begun(only_the_first_request(store.insert(write)), store)
    between = deleted_meanwhile(store)
    lost()
    again = drive(open_store(store.url).insert(write), store)  # in a process that does not know how long it took
    assert again.record.owner == "slow"
    assert again.record.fence > between.fence


def only_the_first_request(verb):
    """Send a verb's first request, and nothing after its reply."""
    yield next(verb)


def rolled_back(once, postgres):
    """Return the fence of a claim whose transaction an interrupt rolls back, so that no record tells of it."""
    with psycopg.connect(postgres.url, autocommit=True) as connection, contextlib.suppress(KeyboardInterrupt):
        with once.transaction("key", connection) as transaction:
            fence = transaction.claim.fence
            raise KeyboardInterrupt
    return fence


def test_no_fence_comes_twice_after_a_takeover_was_rolled_back(store, postgres):
    once = Once(store, name="n")
    drive(store.insert(claim_of("n:key", "a", status=RELEASED, lease=0.0)), store)
    fences = [rolled_back(Once(open_store(store.url), name="n"), postgres) for _ in range(3)]
    fences.append(once.acquire("key").fence)
    assert fences == sorted(set(fences))


def test_a_fence_grows_although_the_clock_steps_back(moved):
    url, move = moved
    store = open_store(url)
    first = drive(store.insert(claim_of("key", "a")), store).record
    assert drive(store.delete(first), store).won
    purged = drive(store.insert(claim_of("other", "a", lease=0.0, keep=0.0)), store).record
    move(1)
    drive(store.purge(10), store)
    move(-3600)
    other = open_store(url)  # as of a process that has not seen those fences
    for key, before in (("key", first), ("other", purged)):
        assert drive(other.insert(claim_of(key, "b")), other).record.fence > before.fence
    store.close()
    other.close()
