"""The cases of an effect that commits together with its record, on any connection of any ledger that has transactions.

A test file imports them all. Its fixtures are ``once``, ``hand`` (stores/postgres_hands.py, stores/mysql_hands.py), ``effects`` and ``schema``.
"""

import asyncio
import functools
import inspect

import pytest

from onceward import Busy, Completed, Once, OncewardError, current


class Failure(Exception):
    pass


def run(test):
    @functools.wraps(test)
    def wrapped(**given):
        asyncio.run(asyncio.wait_for(test(**given), 60))

    del wrapped.__wrapped__
    wrapped.__signature__ = inspect.signature(test)
    return wrapped


@run
async def test_effect_and_record_commit_together_and_a_duplicate_gets_result(once, hand, effects):
    async with hand.connection() as connection:
        async with hand.within(once.transaction("k", connection)) as tx:
            await hand.act(connection)
            assert (effects(), hand.status(once)) == ([], [])
            tx.result = {"done": (1, 2)}
        assert (effects(), hand.status(once)) == (["effect"], [("COMPLETED", 1)])
        assert hand.is_idle(connection)
        with pytest.raises(Completed) as done:
            async with hand.within(once.transaction("k", connection)):
                await hand.act(connection, "twice")
        assert done.value.result == {"done": (1, 2)}
        assert hand.is_idle(connection)
        assert effects() == ["effect"]


@run
async def test_a_body_that_raises_leaves_no_effect_and_counts_the_attempt(once, hand, effects):
    async with hand.connection() as connection:
        for attempt in (1, 2):
            with pytest.raises(Failure):
                async with hand.within(once.transaction("k", connection)) as tx:
                    assert tx.claim.attempt == attempt
                    await hand.act(connection)
                    raise Failure("no")
            assert (effects(), hand.status(once)) == ([], [("RELEASED", attempt)])
            assert hand.is_idle(connection)
        assert next(once.ledger.records())[0].error == "Failure: no"
        async with hand.within(once.transaction("k", connection)):
            await hand.act(connection)
    assert (effects(), hand.status(once)) == (["effect"], [("COMPLETED", 3)])


@run
async def test_a_handler_commits_its_effect_together_with_its_completion(once, hand, effects):
    async def handle():
        async with hand.connection() as connection:
            async with hand.within(current().transaction(connection)) as tx:
                await hand.act(connection)
                tx.result = "told"
        return "returned"

    assert await once.run_async("k", handle) == "returned"
    assert await once.run_async("k", handle) == "told"
    assert (effects(), hand.status(once)) == (["effect"], [("COMPLETED", 1)])


@run
async def test_a_handler_whose_transaction_raises_is_tried_again(once, hand, effects):
    outcomes = [Failure(), None]

    async def handle():
        async with hand.connection() as connection:
            async with hand.within(current().transaction(connection)):
                await hand.act(connection)
                if error := outcomes.pop(0):
                    raise error

    with pytest.raises(Failure):
        await once.run_async("k", handle)
    assert (effects(), hand.status(once)) == ([], [("RELEASED", 1)])
    await once.run_async("k", handle)
    assert (effects(), hand.status(once)) == (["effect"], [("COMPLETED", 2)])


@run
async def test_savepoints_of_the_body_are_its_own_business(once, hand, effects):
    async with hand.connection() as connection:
        async with hand.within(once.transaction("k", connection)):
            await hand.act(connection, "kept")
            await hand.savepoint_undone(connection, "dropped")
    assert (effects(), hand.status(once)) == (["kept"], [("COMPLETED", 1)])


@pytest.mark.parametrize(
    ("ends", "goes_on", "raises"),
    [("COMMIT", False, True), ("COMMIT", True, False), ("ROLLBACK", False, False), ("ROLLBACK", True, True)],
)
def test_a_body_that_ends_the_transaction_itself_is_parked_and_told(once, hand, effects, ends, goes_on, raises):
    async def body():
        async with hand.connection() as connection:
            with pytest.raises(OncewardError, match="committed or rolled back") as told:
                async with hand.within(once.transaction("k", connection)):
                    await hand.act(connection)
                    await hand.sql(connection, ends)
                    if goes_on:
                        await hand.sql(connection, "BEGIN")
                        await hand.act(connection, "more")
                    if raises:
                        raise Failure
            assert isinstance(told.value.__cause__, Failure if raises else type(None))
            assert hand.is_idle(connection)

    asyncio.run(body())
    assert [state for state, _ in hand.status(once)] == ["PARKED"]
    assert "more" not in effects()


@pytest.mark.parametrize("form", ["completion", "step"])
@run
async def test_a_handler_whose_body_commits_by_itself_and_then_fails_is_not_tried_again(once, hand, effects, form):
    async def handle():
        async with hand.connection() as connection:
            claim = current()
            joined = claim.transaction(connection) if form == "completion" else claim.step_transaction("s", connection)
            async with hand.within(joined):
                await hand.act(connection)
                for text in ("COMMIT", "BEGIN", "SELECT nothing FROM nowhere"):
                    await hand.sql(connection, text)

    for refusal in ("committed or rolled back", "parked"):
        with pytest.raises(OncewardError, match=refusal):
            await once.run_async("k", handle)
    assert (effects(), hand.status(once)) == (["effect"], [("PARKED", 1)])


@run
async def test_a_key_in_somebody_elses_open_transaction_is_busy(once, hand, effects, schema):
    rival = Once(schema)
    async with hand.connection() as first, hand.connection() as second:
        if first is second:
            pytest.skip("one connection for each thread")
        async with hand.within(once.transaction("k", first)):
            with pytest.raises(Busy):
                async with hand.within(rival.transaction("k", second)):
                    pytest.fail("it ran")
            assert hand.is_idle(second)
    rival.close()
    assert hand.status(once) == [("COMPLETED", 1)]


@pytest.mark.filterwarnings("ignore:.*around this call is open")  # Django's is seen, though nothing is written in it
@run
async def test_a_claim_of_another_key_inside_the_body_is_its_own(once, hand, effects):
    async with hand.connection() as connection:
        with pytest.raises(Failure):
            async with hand.within(once.transaction("k", connection)):
                await once.run_async("other", asyncio.sleep, 0)
                raise Failure
    assert sorted(hand.status(once)) == [("COMPLETED", 1), ("RELEASED", 1)]


@run
async def test_the_other_kind_of_with_is_refused_before_anything_runs(once, hand, effects):
    async with hand.connection() as connection:
        with pytest.raises(TypeError, match="async with"):
            if hand.awaited:
                with once.transaction("k", connection):
                    pytest.fail("it ran")
            else:
                async with once.transaction("k", connection):
                    pytest.fail("it ran")
        assert hand.is_idle(connection)


@run
async def test_a_body_that_takes_its_record_away_commits_nothing(once, hand, effects):
    async with hand.connection() as connection:
        with pytest.raises(OncewardError, match="committed or rolled back"):
            async with hand.within(once.transaction("k", connection)):
                await hand.act(connection)
                await hand.sql(connection, f"DELETE FROM {once.store.names.table}")
        assert hand.is_idle(connection)
    assert (effects(), [state for state, _ in hand.status(once)]) == ([], ["PARKED"])
