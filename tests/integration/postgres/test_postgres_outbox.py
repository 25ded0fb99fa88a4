"""Messages that leave with a transaction of the caller's, on every kind of connection; and from ledgers that are awaited."""

import asyncio

import pytest

import onceward
from onceward.outbox import drain
from stores.outbox_cases import *  # noqa: F403 - its tests run here
from stores.outbox_cases import unsent


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
