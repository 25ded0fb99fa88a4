"""The cases of connections and replies that are lost around a transaction, on any connection of any ledger that has transactions.

A test file imports them all. Its fixtures are those of stores/transaction_cases.py, ``server``, and ``proxy`` and ``through`` (a CommitProxy).
"""

import asyncio

import pytest

from onceward import Busy, Completed, Once, OncewardError, StoreError, current
from onceward.outbox import drain
from queues.boxes import Box


@pytest.mark.parametrize("plan", ["drop", "delay"])
def test_a_commit_whose_reply_is_lost_counts(once, hand, effects, proxy, through, plan):
    async def body():
        async with hand.connection(through) as connection:
            async with hand.within(once.transaction("k", connection)) as tx:
                await hand.act(connection)
                tx.result = "told"
                proxy.plan = plan
            assert tx.claim.settled == "COMPLETED"
            assert hand.status(once) == [("COMPLETED", 1)]

    asyncio.run(body())
    assert (effects(), proxy.commits) == (["effect"], 1)
    with pytest.raises(Completed) as done, once.claim("k"):
        pass
    assert done.value.result == "told"


def test_a_commit_that_never_arrived_fails_and_the_key_is_given_back(once, hand, effects, proxy, through):
    async def body():
        async with hand.connection(through) as connection:
            with pytest.raises(StoreError):
                async with hand.within(once.transaction("k", connection)):
                    await hand.act(connection)
                    proxy.plan = "swallow"

    asyncio.run(body())
    assert (effects(), hand.status(once)) == ([], [("RELEASED", 1)])


@pytest.mark.parametrize("plan", ["drop", "delay", "swallow"])
def test_a_held_claim_learns_what_its_commit_did(once, hand, effects, proxy, through, plan):
    async def handle():
        async with hand.connection(through) as connection:
            async with hand.within(current().transaction(connection)) as tx:
                await hand.act(connection)
                tx.result = "told"
                proxy.plan = plan

    if plan == "swallow":
        with pytest.raises(StoreError):
            asyncio.run(once.run_async("k", handle))
        assert (effects(), hand.status(once)) == ([], [("RELEASED", 1)])
    else:
        asyncio.run(once.run_async("k", handle))
        assert (effects(), hand.status(once)) == (["effect"], [("COMPLETED", 1)])


def test_a_record_whose_commit_lost_its_reply_outlives_its_messages(once, hand, effects, proxy, through):
    box = Box()

    async def place(transaction_on):
        async with hand.connection(through) as connection, hand.within(transaction_on(connection)):
            await hand.act(connection)
            current().send(box.address, 1)
            proxy.plan = "drop"

    async def handle():
        await place(lambda connection: current().transaction(connection))

    asyncio.run(place(lambda connection: once.transaction("k", connection)))
    asyncio.run(once.run_async("k", handle))
    assert drain(10) == 0
    assert (box.bodies, effects()) == (["1", "1"], ["effect", "effect"])
    for record, now in once.ledger.records():
        assert record.unsent is None
        assert record.expires_at - record.lease_until == pytest.approx(once.policy.retention)
        assert abs(record.lease_until - now) < 60


def test_a_commit_that_nobody_can_tell_of_is_an_error_and_the_key_stays_busy(schema, hand, effects, proxy, through):
    once = Once(schema, lease=3)

    async def body():
        async with hand.connection(through) as connection:
            with pytest.raises(StoreError, match="the reply to its COMMIT was lost") as told:
                async with hand.within(once.transaction("k", connection)):
                    await hand.act(connection)
                    proxy.plan = "hold"
            assert told.value.transient

    asyncio.run(body())
    with pytest.raises(Busy), once.claim("k"):
        pytest.fail("it ran")
    proxy.release()
    with once.claim("k"):
        pass
    assert effects() == []
    once.close()


@pytest.mark.parametrize("raises", [False, True])
def test_a_lost_connection_does_not_park_the_key(once, hand, effects, server, raises):
    async def body():
        async with hand.connection() as connection:
            with pytest.raises((StoreError, ZeroDivisionError)):
                async with hand.within(once.transaction("k", connection)):
                    await hand.act(connection)
                    await hand.killed(connection, server)
                    if raises:
                        raise ZeroDivisionError

    asyncio.run(body())
    assert (effects(), hand.status(once)) == ([], [("RELEASED", 1)])


def test_a_lost_connection_that_the_body_has_noticed_does_not_park_the_key(once, hand, effects, server):
    async def body():
        async with hand.connection() as connection:
            with pytest.raises(Exception) as told:
                async with hand.within(once.transaction("k", connection)):
                    await hand.act(connection)
                    await hand.killed(connection, server)
                    await hand.act(connection)
            assert not isinstance(told.value, StoreError)  # but the driver's own

    asyncio.run(body())
    assert (effects(), hand.status(once)) == ([], [("RELEASED", 1)])


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("held", [False, True])
def test_a_body_that_commits_by_itself_before_its_connection_is_lost_is_not_tried_again(
    once, hand, effects, server, held, raises
):
    async def handle():
        async with hand.connection() as connection:
            async with hand.within(current().transaction(connection) if held else once.transaction("k", connection)):
                await hand.act(connection)
                await hand.sql(connection, "COMMIT")
                await hand.killed(connection, server)
                if raises:
                    raise ZeroDivisionError

    for refusal in ("committed or rolled back", "parked"):
        with pytest.raises(OncewardError, match=refusal):
            asyncio.run(once.run_async("k", handle) if held else handle())
    assert (effects(), hand.status(once)) == (["effect"], [("PARKED", 1)])
