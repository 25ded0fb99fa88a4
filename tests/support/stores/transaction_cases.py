"""The cases of an effect, a step or a message that commits together with its record, for files that import them all, on any ``hand``."""

import asyncio
import contextlib

import pytest

import onceward
from onceward import Busy, Completed, LeaseLost, Once, OncewardError, StepMade, StoreError, current
from onceward.outbox import drain
from queues.boxes import Box


class Failure(Exception):
    pass


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


async def test_a_handler_whose_transaction_raises_is_tried_again_and_commits_its_effect_with_its_completion(
    once, hand, effects
):
    outcomes = [Failure(), None]

    async def handle():
        async with hand.connection() as connection:
            async with hand.within(current().transaction(connection)) as tx:
                await hand.act(connection)
                tx.result = "told"
                if error := outcomes.pop(0):
                    raise error
        return "returned"

    with pytest.raises(Failure):
        await once.run_async("k", handle)
    assert (effects(), hand.status(once)) == ([], [("RELEASED", 1)])
    assert await once.run_async("k", handle) == "returned"
    assert await once.run_async("k", handle) == "told"
    assert (effects(), hand.status(once)) == (["effect"], [("COMPLETED", 2)])


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
async def test_a_body_that_ends_the_transaction_itself_is_parked_and_told(once, hand, effects, ends, goes_on, raises):
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
    assert [state for state, _ in hand.status(once)] == ["PARKED"]
    assert "more" not in effects()


@pytest.mark.parametrize("form", ["completion", "step"])
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
async def test_a_claim_of_another_key_inside_the_body_is_its_own(once, hand, effects):
    async with hand.connection() as connection:
        with pytest.raises(Failure):
            async with hand.within(once.transaction("k", connection)):
                await once.run_async("other", asyncio.sleep, 0)
                raise Failure
    assert sorted(hand.status(once)) == [("COMPLETED", 1), ("RELEASED", 1)]


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


async def test_a_body_that_takes_its_record_away_commits_nothing(once, hand, effects):
    async with hand.connection() as connection:
        with pytest.raises(OncewardError, match="committed or rolled back"):
            async with hand.within(once.transaction("k", connection)):
                await hand.act(connection)
                await hand.sql(connection, f"DELETE FROM {once.store.names.table}")
        assert hand.is_idle(connection)
    assert (effects(), [state for state, _ in hand.status(once)]) == ([], ["PARKED"])


def only(once):
    ((record, _),) = once.ledger.records()
    return record


async def test_effect_and_step_commit_together_and_a_later_attempt_gets_the_result(once, hand, effects):
    async def handle():
        claim = current()
        async with hand.connection() as connection:
            if claim.attempt == 1:
                with pytest.raises(Failure):
                    async with hand.within(claim.step_transaction("stock", connection)):
                        await hand.act(connection, "undone")
                        raise Failure
            stock = claim.step_transaction("stock", connection)
            with contextlib.suppress(StepMade):
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
        await once.run_async("k", handle)
    assert hand.status(once) == [("RELEASED", 1)]
    assert await once.run_async("k", handle) == {"left": (3, 4)}
    assert (effects(), hand.status(once)) == (["effect"], [("COMPLETED", 2)])


async def test_a_large_result_commits_with_its_step_and_its_effect(once, hand, effects):
    async def handle():
        async with hand.connection() as connection:
            stock = current().step_transaction("stock", connection)
            async with hand.within(stock):
                await hand.act(connection)
                stock.result = "x" * 20_000
        raise Failure

    with pytest.raises(Failure):
        await once.run_async("k", handle)
    with pytest.raises(StepMade) as made:
        await once.run_async("k", handle)
    assert (made.value.result, effects()) == ("x" * 20_000, ["effect"])


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
async def test_a_handler_learns_what_the_commit_of_its_step_did(once, hand, effects, proxy, through, plan):
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
            await once.run_async("k", handle)
        assert (effects(), hand.status(once), only(once).steps) == ([], [("RELEASED", 1)], None)
    else:
        assert await once.run_async("k", handle) == "mailed"
        assert (effects(), hand.status(once)) == (["effect"], [("COMPLETED", 1)])
        assert all(name in only(once).steps for name in ("told", "mailed"))


@pytest.fixture
def box():
    return Box()


def unsent(once):
    return [record.unsent for record, _ in once.ledger.records()]


@pytest.mark.parametrize("held", [False, True])
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


async def test_a_message_of_a_rolled_back_transaction_is_never_there(once, hand, effects, box):
    async with hand.connection() as connection:
        with contextlib.suppress(Failure):
            async with hand.own_transaction(connection):
                await hand.act(connection)
                await put(once, hand, connection, box.address, 1)
                raise Failure
    drain(1)
    assert (box.bodies, unsent(once), effects()) == ([], [], [])


async def test_no_message_is_committed_alone(once, hand, box):
    async with hand.connection() as connection:
        if hand.begins:  # any statement begins a transaction there
            assert await put(once, hand, connection, box.address, 1)
            assert unsent(once) == []
        else:
            with pytest.raises(ValueError, match="in no transaction"):
                await put(once, hand, connection, box.address, 1)
    assert unsent(once) == []


async def test_a_message_is_put_by_the_right_method(once, hand, box):
    async with hand.connection() as connection:
        outbox = once.outbox(connection)
        with pytest.raises(TypeError, match=r"outbox\.send"):
            if hand.awaited:
                outbox.send(box.address, 1)
            else:
                await outbox.send_async(box.address, 1)
