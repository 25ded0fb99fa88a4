"""The cases of connections and replies that are lost around a transaction, for files that import them all; ``proxy`` is a CommitProxy."""

import asyncio
from collections import Counter

import pytest

from onceward import Busy, Completed, Once, OncewardError, StoreError, current
from onceward.outbox import drain
from queues.boxes import Box


@pytest.mark.parametrize("plan", ["drop", "delay", "swallow"])
@pytest.mark.parametrize("held", [False, True])
async def test_what_a_commit_did_is_learned_when_its_reply_is_lost(once, hand, effects, proxy, through, plan, held):
    async def handle():
        async with hand.connection(through) as connection:
            made = current().transaction(connection) if held else once.transaction("k", connection)
            async with hand.within(made) as tx:
                await hand.act(connection)
                tx.result = "told"
                proxy.plan = plan

    call = lambda: once.run_async("k", handle) if held else handle()
    if plan == "swallow":
        with pytest.raises(StoreError):
            await call()
        assert (effects(), hand.status(once)) == ([], [("RELEASED", 1)])
        return
    await call()
    assert (effects(), hand.status(once), proxy.commits) == (["effect"], [("COMPLETED", 1)], 1)
    if not held:
        with pytest.raises(Completed) as done, once.claim("k"):
            pass
        assert done.value.result == "told"


async def test_a_record_whose_commit_lost_its_reply_outlives_its_messages(once, hand, effects, proxy, through):
    box = Box()
    async with hand.connection(through) as connection, hand.within(once.transaction("k", connection)):
        await hand.act(connection)
        current().send(box.address, 1)
        proxy.plan = "drop"
    assert drain(10) == 0
    assert (box.bodies, effects()) == (["1"], ["effect"])
    ((record, now),) = once.ledger.records()
    assert record.unsent is None
    assert record.expires_at - record.lease_until == pytest.approx(once.policy.retention)
    assert abs(record.lease_until - now) < 60


async def test_a_commit_that_nobody_can_tell_of_is_an_error_and_the_key_stays_busy(
    schema, hand, effects, proxy, through
):
    once = Once(schema, lease=3)
    async with hand.connection(through) as connection:
        with pytest.raises(StoreError, match="the reply to its COMMIT was lost") as told:
            async with hand.within(once.transaction("k", connection)):
                await hand.act(connection)
                proxy.plan = "hold"
        assert told.value.transient
    with pytest.raises(Busy), once.claim("k"):
        pytest.fail("it ran")
    proxy.release()
    with once.claim("k"):
        pass
    assert effects() == []
    once.close()


@pytest.mark.parametrize("then", ["returns", "raises", "notices"])
async def test_a_lost_connection_does_not_park_the_key(once, hand, effects, server, then):
    async with hand.connection() as connection:
        with pytest.raises(Exception) as told:
            async with hand.within(once.transaction("k", connection)):
                await hand.act(connection)
                await hand.killed(connection, server)
                if then == "raises":
                    raise ZeroDivisionError
                if then == "notices":
                    await hand.act(connection)
        if then != "raises":  # who notices gets the driver's own error
            assert isinstance(told.value, StoreError) == (then == "returns")
    assert (effects(), hand.status(once)) == ([], [("RELEASED", 1)])


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("held", [False, True])
async def test_a_body_that_commits_by_itself_before_its_connection_is_lost_is_not_tried_again(
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
            await (once.run_async("k", handle) if held else handle())
    assert (effects(), hand.status(once)) == (["effect"], [("PARKED", 1)])


TASKS = 20


def lose_the_answer_of(what, url, proxy, sleep):
    """Let tasks wait for the only lane, and lose the answer to their claims or ends. Return how often each body ran."""
    once, ran = Once(url, name="n"), Counter()

    def lose():
        proxy.plan = "drop"

    async def body(number):
        ran[number] += 1
        if what == "ends" and len(ran) == TASKS // 2:
            lose()
        return number

    async def main():
        await once.run_async("warm", asyncio.sleep, 0)
        keeping = asyncio.ensure_future(once.store.exchange_async(sleep))
        await asyncio.sleep(0.05)
        if what == "claims":
            lose()
        tasks = [once.run_async(f"COMMIT {number}", body, number) for number in range(TASKS)]
        results = await asyncio.wait_for(asyncio.gather(*tasks), 30)
        await keeping
        assert results == list(range(TASKS))

    asyncio.run(main())
    assert proxy.commits == 1
    assert {record.status for record, _ in once.ledger.records()} == {"COMPLETED"}
    once.close()
    return ran


def of_two_seconds(url, hasty):
    """A statement may take two seconds, and the fate of a COMMIT is asked for until the lease ends."""
    patient = Once(url)
    patient.ledger.stats()  # makes the tables, which may take as long as a busy machine needs
    patient.close()
    return Once(hasty, name="n", lease=4)
