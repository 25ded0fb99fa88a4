"""A step whose effect is in the ledger's own PostgreSQL: effect and entry commit together, and the handler goes on."""

import asyncio
import time
from contextlib import suppress

import psycopg
import pytest

from onceward import Once, StepMade, current
from stores.postgres_hands import HANDS
from stores.step_cases import *  # noqa: F403 - its tests run here
from waiting import until

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


def test_heartbeats_beside_a_step_are_not_held_up_by_it_and_its_own_goes_on(schema, postgres):
    once = Once(schema, lease=4, heartbeat=0.2)
    with psycopg.connect(postgres.url) as connection, once.claim("other") as other, once.claim("k") as claim:
        with claim.step_transaction("stock", connection):
            first, own = other.record.beat, claim.record.beat
            time.sleep(2.0)
            assert claim.record.beat == own
            assert other.record.beat >= first + 3
        after = claim.record.beat
        until(lambda: claim.record.beat > after)
        assert not claim.lost
    once.close()
