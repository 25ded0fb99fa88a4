"""A claim on PostgreSQL takes what is free in one request: by a function of the database, which a ledger can lack."""

import asyncio
import threading

import psycopg
import pytest

from onceward import Once
from onceward.core.drivers import drive
from onceward.core.policy import Policy
from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED
from onceward.core.register import KeyLocked
from onceward.observe import Event
from onceward.stores import open_store
from onceward.stores.capabilities import INSPECT, MIGRATE
from onceward.stores.postgres.queries import RawQuery
from onceward.testing import Faults
from onceward.testing.bench import claim_of, next_of


def asking(key="key", owner="b", **changes):
    return claim_of(key, owner, taking=Policy(**changes))


def released(store, key="key"):
    held = drive(store.insert(claim_of(key, "a")), store).record
    return drive(store.swap(next_of(held, status=RELEASED, lease=0.0, error="boom"), held), store).record


def fail():
    raise ValueError("boom")


def drop(store, sql):
    sql(f"DROP FUNCTION {', '.join(store.names.functions)}")


def claims(store, call):
    """Return how many requests claimed, while nobody else did."""
    before = len(store.asked)
    with pytest.raises(ValueError, match="boom"):
        call()
    return [ask.verb for ask in store.asked[before:] if any(write.status == IN_PROGRESS for write in ask.writes)]


def test_a_failed_call_and_its_retry_claim_in_one_request_each(store):
    counted = Faults(store, lambda ask: None)
    once = Once(counted, name="n")
    for _ in range(3):
        assert set(claims(counted, lambda: once.run("k", fail))) == {"insert"}


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
        replies, start = [], threading.Barrier(8)

        def take(number, turn=turn, start=start, replies=replies):
            start.wait()
            while True:
                try:
                    replies.append(drive(store.insert(asking(f"k{turn}", f"o{number}")), store))
                except KeyLocked:  # the winner's commit is slow
                    continue
                return

        threads = [threading.Thread(target=take, args=[number]) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (won,) = [reply for reply in replies if reply.won]
        assert won.record.fence > held.fence
        assert (won.record.attempts, won.record.error, won.before) == (2, "boom", held)
        assert {reply.record.owner for reply in replies} == {won.record.owner}
    store.close()


def test_a_key_that_an_open_transaction_takes_is_locked(store, postgres):
    released(store)
    with psycopg.connect(postgres.url) as other:
        other.execute(f"UPDATE {store.names.table} SET worker = 'me'")
        with pytest.raises(KeyLocked):
            drive(store.insert(asking()), store)
    assert drive(store.insert(asking()), store).won


def test_who_waited_for_another_claim_sees_it(store, postgres):
    held = released(store)
    with psycopg.connect(postgres.url) as other:
        other.execute(f"UPDATE {store.names.table} SET owner = 'me', status = 'IN_PROGRESS', fence = fence + 1")
        other.execute(f"UPDATE {store.names.table} SET lease_until = now() + interval '1 hour'")
        timer = threading.Timer(0.3, other.commit)
        timer.start()
        reply = drive(store.insert(asking()), store)
        timer.join()
    assert (reply.won, reply.record.owner, reply.record.fence) == (False, "me", held.fence + 1)


def test_the_wait_leaves_no_trace_in_the_session(store):
    held = drive(store.insert(asking()), store).record
    held = drive(store.swap(next_of(held), held), store).record
    drive(store.swap_many([(next_of(held), held)]), store)
    for setting, value in (("lock_timeout", "0"), ("enable_seqscan", "on"), ("jit", "on"), ("plan_cache_mode", "auto")):
        assert store.exchange(RawQuery(f"SHOW {setting}")) == [[value]]


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


# --- a ledger without the function ----------------------------------------------------------------------------------


def test_without_the_function_a_retry_takes_one_more_request(store, sql):
    drop(store, sql)
    counted = Faults(store, lambda ask: None)
    once = Once(counted, name="n")
    claims(counted, lambda: once.run("k", fail))  # it finds out
    assert not store.takes
    assert claims(counted, lambda: once.run("k", fail))[:2] == ["insert", "swap"]


def test_without_the_function_a_batch_takes_what_is_free_all_the_same(store, sql):
    held = [released(store, f"k{number}") for number in range(3)]
    assert store.takes
    drop(store, sql)
    replies = drive(store.insert_many([asking(f"k{number}") for number in range(4)]), store)
    assert [reply.won for reply in replies] == [True] * 4
    assert [reply.before for reply in replies] == [*held, None]
    assert not store.takes


def test_a_role_that_may_not_make_the_function_works_without_it(store, sql):
    role = f"worker_{store.names.schema}"
    sql(f"CREATE ROLE {role} LOGIN")
    sql(f"GRANT USAGE ON SCHEMA {store.names.schema} TO {role}")
    sql(f"GRANT ALL ON ALL TABLES IN SCHEMA {store.names.schema} TO {role}")
    drop(store, sql)
    worker = open_store(store.url.replace("postgres@", f"{role}@"))
    assert drive(worker.insert(claim_of("key", "a", lease=0.0)), worker).won
    assert not worker.takes
    assert "function" in [one.check for one in INSPECT.needed(worker)().findings()]
    worker.close()


@pytest.mark.parametrize("verb", ["insert", "swap", "swap_many"])
def test_a_role_that_may_not_call_the_function_works_without_it(verb, store, sql):
    role = f"worker_{store.names.schema}"
    sql(f"CREATE ROLE {role} LOGIN")
    sql(f"GRANT USAGE ON SCHEMA {store.names.schema} TO {role}")
    sql(f"GRANT ALL ON ALL TABLES IN SCHEMA {store.names.schema} TO {role}")
    worker = open_store(store.url.replace("postgres@", f"{role}@"))
    held = drive(worker.insert(claim_of("key", "a", lease=0.0)), worker).record
    assert worker.takes
    sql(f"REVOKE EXECUTE ON FUNCTION {', '.join(store.names.functions)} FROM PUBLIC")
    replies = {
        "insert": lambda: [drive(worker.insert(claim_of("other", "a", lease=0.0)), worker)],
        "swap": lambda: [drive(worker.swap(next_of(held), held), worker)],
        "swap_many": lambda: drive(worker.swap_many([(next_of(held), held)]), worker),
    }[verb]()
    assert [reply.won for reply in replies] == [True]
    assert not worker.takes
    worker.close()


def test_migrate_makes_the_function_of_an_earlier_ledger(store, sql):
    drop(store, sql)
    other = open_store(store.url)
    made = drive(MIGRATE.needed(other)(), other)
    assert {(f"function {name}", True) for name in store.names.functions} <= set(made)
    assert not any(part.made for part in drive(MIGRATE.needed(other)(), other))
    other.close()


def test_a_function_of_another_schema_on_the_search_path_is_not_called(postgres, sql):
    with_path = lambda path: open_store(f"{postgres.url}?options=-c%20search_path%3D{path}")
    sql("CREATE SCHEMA adv_shared")
    sql("CREATE SCHEMA adv_tenant")
    shared, tenant = with_path("adv_shared"), with_path("adv_tenant")
    for store in (shared, tenant):
        drive(store.load("?"), store)
    sql(f"DROP FUNCTION {', '.join(f'adv_tenant.{name}' for name in tenant.names.plain_functions)}")
    both = with_path("adv_tenant,adv_shared")
    held = drive(both.insert(asking()), both).record
    assert drive(both.swap(next_of(held), held), both).won
    assert drive(tenant.load("key"), tenant).record.owner == "b"
    assert drive(shared.load("key"), shared).record is None
    for store in (shared, tenant, both):
        store.close()


def test_a_schema_with_a_new_name_gets_functions_of_its_own(schema, sql):
    first = open_store(schema)
    held = released(first)
    first.close()
    sql(f"ALTER SCHEMA {first.names.schema} RENAME TO {first.names.schema}_new")
    moved = open_store(f"{schema}_new")
    reply = drive(moved.insert(asking()), moved)
    assert reply.before == held
    assert drive(moved.swap(next_of(reply.record), reply.record), moved).won
    assert moved.takes
    moved.close()


def test_many_processes_at_once_make_one_function(schema):
    stores = [open_store(schema) for _ in range(8)]
    start = threading.Barrier(8)
    won = []

    def use(number):
        start.wait()
        won.append(drive(stores[number].insert(asking("key", f"o{number}")), stores[number]).won)

    threads = [threading.Thread(target=use, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (won.count(True), len(won)) == (1, 8)
    assert all(store.takes for store in stores)
    for store in stores:
        store.close()
