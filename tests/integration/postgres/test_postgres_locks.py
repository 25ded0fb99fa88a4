"""A key in somebody's open transaction is busy: nobody waits for it longer than a second, and who waited sees what was committed."""

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from onceward import Busy, Completed, Once
from onceward.core.drivers import drive
from onceward.core.policy import Policy
from onceward.core.record import COMPLETED, RELEASED
from onceward.core.register import KeyLocked
from onceward.core.steps import Bid, Won, claim
from onceward.stores import open_store
from onceward.stores.postgres.queries import RawQuery
from onceward.testing.bench import claim_of, next_of


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
    assert store.exchange(RawQuery("SHOW lock_timeout")) == [("0",)]


def test_a_swap_does_not_wait_for_an_open_transaction_and_leaves_no_trace_in_its_session(store, other):
    held = claimed(store, 3)
    hold(other, store, "k1")
    with pytest.raises(KeyLocked):
        drive(store.swap(*completing(held[1])), store)
    assert are_locked(drive(store.swap_many([completing(one) for one in held]), store)) == [False, True, False]
    other.rollback()
    assert drive(store.swap(*completing(held[1])), store).won
    assert store.exchange(RawQuery("SHOW lock_timeout")) == [("0",)]


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
