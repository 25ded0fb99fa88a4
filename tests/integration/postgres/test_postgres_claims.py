"""Claims and completions on PostgreSQL call functions of the database, which a ledger can lack. A claim takes what is free."""

import asyncio
import threading

import psycopg
import pytest

from onceward import Once, current
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


@pytest.fixture
def store(schema):
    store = open_store(schema)
    drive(store.load("?"), store)
    yield store
    store.close()


@pytest.fixture
def sql(postgres):
    return lambda statement, *values: postgres.sql(statement, *values, database="test")


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


# --- swaps, with the functions and without ---------------------------------------------------------------------------


@pytest.fixture(params=["with the functions", "without"])
def make_ready(request, store, sql):
    """Drop the functions or not; called when the ledger has what the test needs."""
    there = request.param == "with the functions"
    yield lambda: None if there else drop(store, sql)
    assert store.takes is there


def claimed(store, *keys):
    return [drive(store.insert(claim_of(key, "a")), store).record for key in keys]


def completing(held):
    return next_of(held, status=COMPLETED, result='{"a": 1}', keep=60.0)


def test_a_swap_is_won_once_and_then_refused_with_what_it_met(store, make_ready):
    (held,) = claimed(store, "key")
    make_ready()
    won = drive(store.swap(completing(held), held), store)
    assert (won.won, won.record.status, won.record.result, won.before) == (True, COMPLETED, '{"a": 1}', None)
    assert (won.record.fence, won.record.beat) == (held.fence, held.beat + 1)
    assert won.record == drive(store.load("key"), store).record
    late = drive(store.swap(next_of(held, status=RELEASED), held), store)
    assert (late.won, late.record) == (False, won.record)
    assert late.now >= won.now
    missing = drive(store.swap(completing(held._replace(key="other")), held._replace(key="other")), store)
    assert (missing.won, missing.record) == (False, None)
    assert missing.now >= late.now


def test_a_batch_of_swaps_wins_is_refused_and_misses_by_key(store, make_ready):
    first, second = claimed(store, "k1", "k2")
    gone = first._replace(key="k0")
    second_now = drive(store.swap(next_of(second), second), store).record
    make_ready()
    pairs = [(completing(held), held) for held in (second, gone, first)]
    refused, missing, won = drive(store.swap_many(pairs), store)
    assert (won.won, won.record.key, won.record.status, won.record.beat) == (True, "k1", COMPLETED, first.beat + 1)
    assert (refused.won, refused.record) == (False, second_now)
    assert (missing.won, missing.record) == (False, None)
    assert min(won.now, refused.now, missing.now) > 0


def test_swaps_of_a_key_in_an_open_transaction_are_locked(store, make_ready, postgres):
    first, second = claimed(store, "k1", "k2")
    make_ready()
    with psycopg.connect(postgres.url) as other:
        other.execute(f"UPDATE {store.names.table} SET worker = 'me' WHERE key = 'k1'")
        with pytest.raises(KeyLocked):
            drive(store.swap(completing(first), first), store)
        locked, won = drive(store.swap_many([(completing(held), held) for held in (first, second)]), store)
        assert isinstance(locked, KeyLocked)
        assert won.won
    assert drive(store.swap(completing(first), first), store).won


@pytest.mark.parametrize("many", [False, True])
def test_a_swap_that_waited_for_a_takeover_is_refused_with_it(many, store, make_ready, postgres):
    (held,) = claimed(store, "key")
    make_ready()
    with psycopg.connect(postgres.url) as other:
        other.execute(f"UPDATE {store.names.table} SET owner = 'me', fence = fence + 1")
        timer = threading.Timer(0.3, other.commit)
        timer.start()
        pair = completing(held), held
        reply = drive(store.swap_many([pair]), store)[0] if many else drive(store.swap(*pair), store)
        timer.join()
    assert (reply.won, reply.record.owner, reply.record.fence) == (False, "me", held.fence + 1)


def test_a_new_fence_is_asked_for_by_a_swap_too(store, make_ready):
    held = released(store)
    make_ready()
    won = drive(store.swap(claim_of("key", "b", attempts=2), held), store)
    assert (won.won, won.record.owner) == (True, "b")
    assert won.record.fence > held.fence


def test_a_swap_in_a_transaction_of_the_caller_needs_no_function(store, sql, once, hand, effects):
    async def handle():
        drop(store, sql)
        async with hand.connection() as connection, hand.within(current().transaction(connection)):
            await hand.act(connection)

    asyncio.run(once.run_async("key", handle))
    ((record, _),) = once.ledger.records()
    assert (record.status, effects()) == (COMPLETED, ["effect"])


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
        "swap": lambda: [drive(worker.swap(completing(held), held), worker)],
        "swap_many": lambda: drive(worker.swap_many([(completing(held), held)]), worker),
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
    assert drive(both.insert(asking()), both).won
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
    assert drive(moved.insert(asking()), moved).before == held
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
