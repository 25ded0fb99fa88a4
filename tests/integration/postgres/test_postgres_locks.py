"""A key in somebody's open transaction is busy: nobody waits for it longer than a second."""

import contextlib
import threading
import time

import psycopg
import pytest

from onceward import Busy, Completed, Once, StoreError
from onceward.core.drivers import drive
from onceward.core.register import KeyLocked
from onceward.stores import open_store
from onceward.stores.postgres.queries import RawQuery
from onceward.testing.bench import claim_of, next_of


@pytest.fixture
def store(schema):
    store = open_store(schema)
    yield store
    store.close()


@pytest.fixture
def other(postgres, store):
    """Somebody's open transaction."""
    drive(store.load("?"), store)
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


def test_an_insert_does_not_wait_for_an_open_transaction(store, other):
    insert(other, store, "key")
    with pytest.raises(KeyLocked):
        drive(store.insert(claim_of("key", "a")), store)


def test_a_swap_does_not_wait_for_an_open_transaction(store, other):
    held = drive(store.insert(claim_of("key", "a")), store).record
    hold(other, store, "key")
    with pytest.raises(KeyLocked):
        drive(store.swap(next_of(held), held), store)


@pytest.mark.parametrize("verb", ["insert", "swap"])
def test_a_locked_key_in_the_line_holds_up_no_other(verb, schema, other, store):
    one_lane = open_store(f"{schema}&lanes=1")
    if verb == "insert":
        insert(other, store, "k3")
        asked = [one_lane.insert(claim_of(f"k{number}", "a")) for number in range(20)]
    else:
        claims = drive(one_lane.insert_many([claim_of(f"k{number}", "a") for number in range(20)]), one_lane)
        hold(other, store, "k3")
        asked = [one_lane.swap(next_of(reply.record), reply.record) for reply in claims]
    drive(one_lane.load("?"), one_lane)
    ended = {}

    def write(number):
        with contextlib.suppress(KeyLocked):
            drive(asked[number], one_lane)
        ended[number] = time.monotonic()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(20)]
    busy = threading.Thread(target=one_lane.exchange, args=(RawQuery("SELECT pg_sleep(0.5)::text"),))
    busy.start()
    time.sleep(0.1)
    for thread in threads:
        thread.start()
    for thread in [busy, *threads]:
        thread.join()
    locked = ended.pop(3)
    assert locked > max(ended.values())
    one_lane.close()


def test_a_batch_leaves_out_the_key_that_is_locked(store, other):
    insert(other, store, "k2")
    replies = drive(store.insert_many([claim_of(f"k{i}", "a") for i in range(5)]), store)
    assert [type(reply) is KeyLocked for reply in replies] == [False, False, True, False, False]
    assert [reply.won for reply in replies if type(reply) is not KeyLocked] == [True] * 4


def test_a_batch_leaves_out_the_locked_key_also_when_statements_may_take_less(schema, other):
    store = open_store(f"{schema}&options=-c%20statement_timeout%3D300")
    insert(other, store, "k2")
    replies = drive(store.insert_many([claim_of(f"k{i}", "a") for i in range(5)]), store)
    assert [type(reply) is KeyLocked for reply in replies] == [False, False, True, False, False]
    store.close()


def test_keys_of_a_batch_do_not_wait_for_a_lost_server_one_by_one(store):
    steps = store.insert_many([claim_of(f"k{i}", "a") for i in range(5)])
    next(steps)
    steps.throw(KeyLocked("one key"))  # now each alone
    with pytest.raises(StopIteration) as ended:
        steps.throw(StoreError("no answer", transient=True))
    assert [str(answer) for answer in ended.value.value] == ["no answer"] * 5


def test_duplicates_of_a_locked_key_do_not_hold_the_pool(schema, other, store):
    once = Once(open_store(f"{schema}&lanes=2&timeout=10"))  # less than if each held a connection for a second
    insert(other, store, "name:slow")
    met = []

    def ask():
        try:
            once.acquire("slow", name="name")
        except (Busy, StoreError) as error:
            met.append(type(error))

    threads = [threading.Thread(target=ask) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert met == [Busy] * 40
    once.close()


def test_a_handler_finds_a_locked_key_busy(store, other):
    once = Once(store)
    insert(other, store, "name:key")
    with pytest.raises(Busy) as caught:
        once.acquire("key", name="name")
    assert 0 < caught.value.retry_after <= 1


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


def test_a_loser_that_waited_sees_the_winner(store, other):
    insert(other, store, "key")
    timer = threading.Timer(0.3, other.commit)
    timer.start()
    reply = drive(store.insert(claim_of("key", "a")), store)
    timer.join()
    assert (reply.won, reply.record.owner) == (False, "me")


def test_an_insert_that_waited_for_a_rollback_wins(store, other):
    insert(other, store, "key")
    timer = threading.Timer(0.3, other.rollback)
    timer.start()
    reply = drive(store.insert(claim_of("key", "a")), store)
    timer.join()
    assert (reply.won, reply.record.owner) == (True, "a")


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_one_of_many_wins_at_every_isolation_level(level, schema):
    store = open_store(f"{schema}&options=-c%20default_transaction_isolation%3D{level.replace(' ', chr(92) + ' ')}")
    for round_ in range(3):
        seen = drive(store.insert(claim_of(f"k{round_}", "a", lease=0.0)), store).record
        replies = []
        start = threading.Barrier(8)

        def swap(number, seen=seen, start=start, replies=replies):
            start.wait()
            write = next_of(seen, owner=f"o{number}", beat=0, fence=seen.fence + 1)
            replies.append(drive(store.swap(write, seen), store))

        threads = [threading.Thread(target=swap, args=[number]) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(reply.won for reply in replies) == 1
        assert len({reply.record.owner for reply in replies}) == 1
    store.close()


def test_the_wait_leaves_no_trace_in_the_session(store):
    drive(store.insert(claim_of("key", "a")), store)
    from onceward.stores.postgres.queries import RawQuery

    assert store.exchange(RawQuery("SHOW lock_timeout")) == [("0",)]
