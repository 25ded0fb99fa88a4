"""The cases of a step that commits together with its effect, on any connection of any ledger that has transactions.

A test file imports them all. Its fixtures are those of stores/lost_cases.py.
"""

import asyncio
from contextlib import suppress

import pytest

from onceward import LeaseLost, StepMade, StoreError, current
from stores.transaction_cases import run


class Failure(Exception):
    pass


def only(once):
    ((record, _),) = once.ledger.records()
    return record


def test_effect_and_step_commit_together_and_a_later_attempt_gets_the_result(once, hand, effects):
    async def handle():
        claim = current()
        async with hand.connection() as connection:
            stock = claim.step_transaction("stock", connection)
            with suppress(StepMade):
                async with hand.within(stock):
                    await hand.act(connection)
                    stock.result = {"left": (3, 4)}
                    assert (effects(), only(once).steps) == ([], None)
            assert (effects(), hand.is_idle(connection)) == (["effect"], True)
            await claim.step_async("mail", lambda: "mailed")
            if claim.attempt == 1:
                raise Failure
            return stock.result

    with pytest.raises(Failure):
        asyncio.run(once.run_async("k", handle))
    assert hand.status(once) == [("RELEASED", 1)]
    assert asyncio.run(once.run_async("k", handle)) == {"left": (3, 4)}
    assert (effects(), hand.status(once)) == (["effect"], [("COMPLETED", 2)])


def test_a_large_result_commits_with_its_step_and_its_effect(once, hand, effects):
    async def handle():
        async with hand.connection() as connection:
            stock = current().step_transaction("stock", connection)
            async with hand.within(stock):
                await hand.act(connection)
                stock.result = "x" * 20_000
        raise Failure

    with pytest.raises(Failure):
        asyncio.run(once.run_async("k", handle))
    with pytest.raises(StepMade) as made:
        asyncio.run(once.run_async("k", handle))
    assert (made.value.result, effects()) == ("x" * 20_000, ["effect"])


@run
async def test_a_body_that_raises_leaves_neither_and_can_be_tried_again_at_once(once, hand, effects):
    async def handle():
        async with hand.connection() as connection:
            with pytest.raises(Failure):
                async with hand.within(current().step_transaction("stock", connection)):
                    await hand.act(connection, "undone")
                    raise Failure
            async with hand.within(current().step_transaction("stock", connection)):
                await hand.act(connection)

    await once.run_async("k", handle)
    assert (effects(), hand.status(once)) == (["effect"], [("COMPLETED", 1)])


@run
async def test_a_zombies_step_is_refused_and_its_effect_rolled_back(once, hand, effects):
    zombie = once.acquire("k")
    once.ledger.clear("claim:k", live=True)
    once.acquire("k")
    async with hand.connection() as connection:
        with pytest.raises(LeaseLost):
            async with hand.within(zombie.step_transaction("stock", connection)):
                await hand.act(connection)
    assert (effects(), only(once).steps) == ([], None)


@pytest.mark.parametrize("plan", ["drop", "delay", "swallow"])
def test_a_handler_learns_what_the_commit_of_its_step_did(once, hand, effects, proxy, through, plan):
    async def handle():
        claim = current()
        async with hand.connection(through) as connection:
            async with hand.within(claim.step_transaction("stock", connection)) as stock:
                await hand.act(connection)
                stock.result = "told"
                proxy.plan = plan
        return await claim.step_async("mail", lambda: "mailed")

    if plan == "swallow":
        with pytest.raises(StoreError):
            asyncio.run(once.run_async("k", handle))
        assert (effects(), hand.status(once), only(once).steps) == ([], [("RELEASED", 1)], None)
    else:
        assert asyncio.run(once.run_async("k", handle)) == "mailed"
        assert (effects(), hand.status(once)) == (["effect"], [("COMPLETED", 1)])
        assert all(name in only(once).steps for name in ("told", "mailed"))
