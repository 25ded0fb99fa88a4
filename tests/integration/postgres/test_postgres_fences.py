"""A key's fences only grow: past claims that stop in the middle of a write, rollbacks, deletions and clocks that step back."""

import contextlib
import threading
import time

import psycopg
import pytest

from onceward import Once
from onceward.core.drivers import drive
from onceward.core.record import RELEASED
from onceward.stores import open_store
from onceward.testing.bench import claim_of


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
