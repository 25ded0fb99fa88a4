"""The cases of messages that leave with a transaction, on any connection of any ledger that has transactions.

A test file imports them all. Its fixtures are those of stores/transaction_cases.py.
"""

import contextlib

import pytest

import onceward
from onceward.outbox import drain
from queues.boxes import Box
from stores.transaction_cases import run


class Failure(Exception):
    pass


@pytest.fixture
def box():
    return Box()


def unsent(once):
    return [record.unsent for record, _ in once.ledger.records()]


@pytest.mark.parametrize("held", [False, True])
@run
async def test_messages_leave_with_a_transaction(once, hand, effects, box, held):
    async def place():
        async with hand.connection() as connection:
            made = onceward.current().transaction(connection) if held else once.transaction("k", connection)
            async with hand.within(made):
                await hand.act(connection)
                onceward.current().send(box.address, 1)
                onceward.current().send(box.address, 2)
                assert box.bodies == []

    await (once.run_async("k", place) if held else place())
    assert drain(10) == 0
    assert (box.bodies, effects(), unsent(once)) == (["1", "2"], ["effect"], [None])


@run
async def test_a_transaction_that_is_rolled_back_sends_nothing(once, hand, effects, box):
    with pytest.raises(Failure):
        async with hand.connection() as connection, hand.within(once.transaction("k", connection)):
            onceward.current().send(box.address, 1)
            raise Failure
    assert drain(10) == 0
    assert (box.bodies, effects(), unsent(once)) == ([], [], [None])


async def put(once, hand, connection, target, message, **more):
    outbox = once.outbox(connection)
    if hand.awaited:
        return await outbox.send_async(target, message, **more)
    return outbox.send(target, message, **more)


@pytest.mark.parametrize("first", ["message", "effect"])
@run
async def test_a_message_leaves_with_a_transaction_without_a_claim(once, hand, effects, box, first):
    list(once.ledger.records())
    async with hand.connection() as connection:
        async with hand.own_transaction(connection):
            if first == "effect":
                await hand.act(connection)
            assert await put(once, hand, connection, box.address, 1, key="k")
            assert not await put(once, hand, connection, box.address, 2, key="k")
            await hand.act(connection)
            assert (box.bodies, unsent(once)) == ([], [])
        assert hand.is_idle(connection)
    assert drain(10) == 0
    assert (box.bodies, unsent(once)) == (["1"], [None])
    assert "effect" in effects()


@run
async def test_a_message_of_a_rolled_back_transaction_is_never_there(once, hand, effects, box):
    async with hand.connection() as connection:
        with contextlib.suppress(Failure):
            async with hand.own_transaction(connection):
                await hand.act(connection)
                await put(once, hand, connection, box.address, 1)
                raise Failure
    drain(1)
    assert (box.bodies, unsent(once), effects()) == ([], [], [])


@run
async def test_no_message_is_committed_alone(once, hand, box):
    async with hand.connection() as connection:
        if hand.begins:  # any statement begins a transaction there
            assert await put(once, hand, connection, box.address, 1)
            assert unsent(once) == []
        else:
            with pytest.raises(ValueError, match="in no transaction"):
                await put(once, hand, connection, box.address, 1)
    assert unsent(once) == []


@run
async def test_a_message_is_put_by_the_right_method(once, hand, box):
    async with hand.connection() as connection:
        outbox = once.outbox(connection)
        with pytest.raises(TypeError, match=r"outbox\.send"):
            if hand.awaited:
                outbox.send(box.address, 1)
            else:
                await outbox.send_async(box.address, 1)
