"""Messages that leave with a transaction of the caller's, on every kind of connection; and from ledgers that are awaited."""

import asyncio
import time

import asyncpg
import pytest

import onceward
from onceward import Once
from onceward.outbox import drain, drain_async
from onceward.stores.postgres import open_ledger
from outbox_cases import *  # noqa: F403 - its tests run here
from outbox_cases import unsent


def test_a_transaction_whose_commit_fails_sends_nothing(once, hand, sql, box, postgres):
    sql(f"CREATE TABLE {hand.table}_late (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")

    async def place():
        async with hand.connection() as connection, hand.within(once.transaction("k", connection)):
            onceward.current().send(box.address, 1)
            for _ in "ab":
                await hand.sql(connection, f"INSERT INTO {hand.table}_late VALUES (1)")

    with pytest.raises(onceward.StoreError):
        asyncio.run(place())
    assert drain(10) == 0
    assert (box.bodies, unsent(once)) == ([], [None])


def test_a_ledger_of_an_asyncpg_pool_sends_while_its_loop_runs(schema, postgres15, box):
    place, _, name = schema.partition("?schema=")

    async def main():
        async with asyncpg.create_pool(place) as pool:
            once = Once(open_ledger(pool, schema=name))

            async def handle():
                onceward.current().send(box.address, 1)

            await once.run_async("k", handle)
            assert await drain_async(10) == 0
            return [record.unsent for record, _ in await asyncio.to_thread(lambda: list(once.ledger.records()))]

    assert asyncio.run(main()) == [None]
    assert box.bodies == ["1"]


def test_a_ledger_whose_loop_has_ended_leaves_the_rest_to_others(schema, box, caplog, monkeypatch):
    place, _, name = schema.partition("?schema=")
    box.target.send, real = lambda messages: (time.sleep(0.5), real(messages))[1], box.target.send

    async def main():
        async with asyncpg.create_pool(place) as pool:
            once = Once(open_ledger(pool, schema=name), lease=1.0)

            async def handle():
                onceward.current().send(box.address, 1)

            await once.run_async("k", handle)

    asyncio.run(main())
    drain(5)
    assert "no event loop is running" in caplog.text
    other = Once(schema)
    assert unsent(other) != [None]
    other.close()
