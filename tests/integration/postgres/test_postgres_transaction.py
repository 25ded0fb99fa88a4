"""An effect in the ledger's own PostgreSQL commits together with its record, its step and its messages: all, or nothing."""

import asyncio
from contextlib import suppress

import pytest

from onceward import Once, StepMade, StoreError, current
from onceward.outbox import drain
from stores.postgres_hands import HANDS
from stores.transaction_cases import *  # noqa: F403 - its tests run here
from stores.transaction_cases import Failure, unsent


async def test_another_database_than_the_ledgers_is_refused(once, hand, postgres, effects, schema):
    second = hand.table.replace("effects", "second")
    postgres.sql(f"CREATE DATABASE {second}")
    twin = Once(schema.replace("/test?", f"/{second}?"))
    twin.run("set up", int)  # the same tables are there
    async with hand.connection(postgres.url.replace("/test", f"/{second}")) as connection:
        with pytest.raises(ValueError, match="another database"):
            async with hand.within(once.transaction("k", connection)):
                pytest.fail("it ran")
        assert hand.is_idle(connection)
    assert [state for state, _ in hand.status(twin)] == ["COMPLETED"]
    twin.close()


async def test_a_constraint_that_fails_at_the_commit_undoes_both_and_sends_nothing(once, hand, postgres, effects, box):
    unique = f"ALTER TABLE {hand.table} ADD CONSTRAINT {hand.table}_one UNIQUE (value) DEFERRABLE INITIALLY DEFERRED"
    postgres.sql(unique, database="test")
    async with hand.connection() as connection:
        with pytest.raises(StoreError, match="23505"):
            async with hand.within(once.transaction("k", connection)):
                current().send(box.address, 1)
                await hand.act(connection)
                await hand.act(connection)
        assert (effects(), hand.status(once)) == ([], [("RELEASED", 1)])
        assert (hand.is_idle(connection), drain(10), box.bodies, unsent(once)) == (True, 0, [], [None])
        async with hand.within(once.transaction("k", connection)):
            await hand.act(connection)
    assert (effects(), hand.status(once)) == (["effect"], [("COMPLETED", 2)])


async def test_a_connection_that_has_prepared_our_statements_can_forget_them(once, hand, effects):
    """psycopg does so after each rollback, also to a savepoint."""
    async with hand.connection() as connection:
        for turn in range(9):
            async with hand.within(once.transaction(("plain", turn), connection)):
                await hand.act(connection, "kept")
        for turn in range(9):
            async with hand.within(once.transaction(("savepoint", turn), connection)):
                await hand.act(connection, "kept")
                await hand.savepoint_undone(connection, "dropped")
            with pytest.raises(Failure):
                async with hand.within(once.transaction(("fails", turn), connection)):
                    raise Failure
    assert (effects(), hand.status(once).count(("COMPLETED", 1))) == (["kept"] * 18, 18)


async def test_another_encoding_is_refused_before_the_body_runs(once, hand):
    async with hand.connection() as connection:
        async with hand.own_transaction(connection):
            await hand.sql(connection, "SET client_encoding TO LATIN1")
        with pytest.raises(ValueError, match="client_encoding is LATIN1"):
            async with hand.within(once.transaction("k", connection)):
                pytest.fail("it ran")
    assert hand.status(once) == []


pytestmark = pytest.mark.sampled(hand=2)


@pytest.mark.parametrize("point", range(6))
@pytest.mark.parametrize("name", [name for name, kind in HANDS.items() if kind.awaited])
def test_a_cancellation_at_any_moment_leaves_both_or_neither(once, postgres, table, effects, name, point):
    hand, patience = HANDS[name](postgres.url, table), 60

    async def handle(connection):
        with suppress(StepMade):
            async with current().step_transaction("stock", connection):
                await hand.act(connection)
        await asyncio.sleep(patience)

    async def main():
        nonlocal patience
        async with hand.connection() as connection:
            call = asyncio.create_task(once.run_async("k", handle, connection))
            async with hand.connection() as looking:
                await hand.act(looking, "warm")
            await asyncio.sleep(0.003 * point)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert hand.is_idle(connection)
            made = effects().count("effect")
            assert made == sum(record.steps is not None for record, _ in once.ledger.records())
            for record, _ in once.ledger.records():
                once.ledger.park(record.key, live=True)
                once.ledger.unpark(record.key)
            patience = 0
            await once.run_async("k", handle, connection)

    asyncio.run(main())
    assert effects().count("effect") == 1
