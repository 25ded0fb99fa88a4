"""A claim on PostgreSQL: an insert for a key that is absent, and a swap for a record that is free."""

import asyncio
import threading

import psycopg
import pytest

from onceward import Once
from onceward.core.drivers import drive
from onceward.core.policy import Policy
from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED
from onceward.core.register import KeyLocked
from onceward.core.steps import Bid, Won, claim
from onceward.core.writes import next_claim
from onceward.observe import Event
from onceward.stores import open_store
from onceward.stores.postgres.queries import RawQuery
from onceward.testing import Faults
from onceward.testing.bench import claim_of, next_of


def released(store, key="key"):
    held = drive(store.insert(claim_of(key, "a")), store).record
    return drive(store.swap(next_of(held, status=RELEASED, lease=0.0, error="boom"), held), store).record


def taking(held, owner="b"):
    return next_claim(claim_of(held.key, owner), held, fresh=False), held


def fail():
    raise ValueError("boom")


def claims(store, call):
    """Return the verbs of the requests that claimed."""
    before = len(store.asked)
    with pytest.raises(ValueError, match="boom"):
        call()
    return [ask.verb for ask in store.asked[before:] if any(write.status == IN_PROGRESS for write in ask.writes)]


def test_a_retry_after_a_failure_claims_by_one_more_request(store):
    counted = Faults(store, lambda ask: None)
    once = Once(counted, name="n")
    assert set(claims(counted, lambda: once.run("k", fail))) == {"insert"}
    assert list(dict.fromkeys(claims(counted, lambda: once.run("k", fail)))) == ["insert", "swap"]


def test_a_takeover_is_told_with_its_attempt(schema, moved):
    url, move = moved
    told = []
    once = Once(url, name="n", lease=60, heartbeat=0, observe=[told.append])
    once.acquire("k")
    move(61)
    once.acquire("k")
    last = [event for event in told if isinstance(event, Event)][-1]
    assert (last.kind, last.attempt) == ("taken_over", 2)
    ((record, _),) = once.ledger.records()
    assert record.error == "attempt 1 ended without a word: its lease lapsed"
    once.close()


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_one_of_many_takes_at_every_isolation_level(level, schema):
    store = open_store(f"{schema}&options=-c%20default_transaction_isolation%3D{level.replace(' ', chr(92) + ' ')}")
    for turn in range(3):
        held = released(store, f"k{turn}")
        outcomes, start = [], threading.Barrier(8)

        def take(number, turn=turn, start=start, outcomes=outcomes):
            bid = Bid(f"k{turn}", f"o{number}", None, Policy())
            start.wait()
            outcomes.append(drive(claim(store, bid), store))

        threads = [threading.Thread(target=take, args=[number]) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (won,) = [outcome for outcome in outcomes if isinstance(outcome, Won)]
        assert won.record.fence > held.fence
        assert (won.record.attempts, won.record.error, won.before) == (2, "boom", held)
        assert {outcome.record.owner for outcome in outcomes} <= {won.record.owner, ""}  # "": its commit was slow
    store.close()


def test_a_key_that_an_open_transaction_takes_is_locked(store, postgres):
    held = released(store)
    with psycopg.connect(postgres.url) as other:
        other.execute(f"UPDATE {store.names.table} SET worker = 'me'")
        with pytest.raises(KeyLocked):
            drive(store.swap(*taking(held)), store)
    assert drive(store.swap(*taking(held)), store).won


def test_who_waited_for_another_claim_sees_it(store, postgres):
    held = released(store)
    with psycopg.connect(postgres.url) as other:
        other.execute(f"UPDATE {store.names.table} SET owner = 'me', status = 'IN_PROGRESS', fence = fence + 1")
        other.execute(f"UPDATE {store.names.table} SET lease_until = now() + interval '1 hour'")
        timer = threading.Timer(0.3, other.commit)
        timer.start()
        reply = drive(store.swap(*taking(held)), store)
        timer.join()
    assert (reply.won, reply.record.owner, reply.record.fence) == (False, "me", held.fence + 1)


def test_the_wait_leaves_no_trace_in_the_session(store):
    held = drive(store.insert(claim_of()), store).record
    held = drive(store.swap(next_of(held), held), store).record
    drive(store.swap_many([(next_of(held), held)]), store)
    assert store.exchange(RawQuery("SHOW lock_timeout")) == [("0",)]


def test_in_a_transaction_of_the_caller_a_released_key_is_taken_too(once, hand, effects):
    async def use():
        async with hand.connection() as connection:
            with pytest.raises(ValueError, match="boom"):
                async with hand.within(once.transaction("key", connection, name="n")):
                    raise ValueError("boom")
            async with hand.within(once.transaction("key", connection, name="n")) as transaction:
                assert transaction.claim.attempt == 2
                await hand.act(connection)

    asyncio.run(use())
    ((record, _),) = once.ledger.records()
    assert (record.status, record.attempts, effects()) == (COMPLETED, 2, ["effect"])


def test_a_ledger_with_the_functions_of_an_earlier_version_keeps_them_and_works(store, sql):
    name = f"{store.names.schema}.{store.names.plain}_swap_1a2b3c"
    sql(f"CREATE FUNCTION {name}() RETURNS text LANGUAGE sql AS $$ SELECT 'theirs' $$")
    newer = open_store(store.url)
    held = released(newer)
    assert drive(newer.swap(*taking(held)), newer).won
    assert sql(f"SELECT {name}()") == [("theirs",)]
    newer.close()
