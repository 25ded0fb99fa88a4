"""An effect in the ledger's own PostgreSQL commits together with its record: both, or neither."""

import pytest

from onceward import Once, OncewardError, StoreError
from stores.transaction_cases import *  # noqa: F403 - its tests run here
from stores.transaction_cases import Failure, run


@run
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


@run
async def test_a_constraint_that_fails_at_the_commit_undoes_both(once, hand, postgres, effects):
    unique = f"ALTER TABLE {hand.table} ADD CONSTRAINT {hand.table}_one UNIQUE (value) DEFERRABLE INITIALLY DEFERRED"
    postgres.sql(unique, database="test")
    async with hand.connection() as connection:
        with pytest.raises(StoreError, match="23505"):
            async with hand.within(once.transaction("k", connection)):
                await hand.act(connection)
                await hand.act(connection)
        assert (effects(), hand.status(once)) == ([], [("RELEASED", 1)])
        assert hand.is_idle(connection)
        async with hand.within(once.transaction("k", connection)):
            await hand.act(connection)
    assert (effects(), hand.status(once)) == (["effect"], [("COMPLETED", 2)])


@run
async def test_a_body_that_takes_its_record_away_commits_nothing(once, hand, effects, schema):
    place = schema.partition("schema=")[2]
    async with hand.connection() as connection:
        with pytest.raises(OncewardError, match="committed or rolled back"):
            async with hand.within(once.transaction("k", connection)):
                await hand.act(connection)
                await hand.sql(connection, f"DELETE FROM {place}.onceward")
        assert hand.is_idle(connection)
    assert (effects(), [state for state, _ in hand.status(once)]) == ([], ["PARKED"])


@run
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
