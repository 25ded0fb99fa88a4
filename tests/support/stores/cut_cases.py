"""The cases of transactions that are cancelled, interrupted or left behind, for files that import them all; ``waiting`` is a hand that is awaited."""

import asyncio
import contextlib
import gc
import os
import signal
import threading
import time

import anyio
import pytest

from onceward import Once, current
from onceward.claim.lease import CURRENT


async def cancelled(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 30)


@contextlib.contextmanager
def interrupted(after):
    """Raise KeyboardInterrupt so many seconds after the block has called ``arm()``."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield lambda: signal.setitimer(signal.ITIMER_REAL, after)
    finally:
        signal.signal(signal.SIGALRM, before)


async def test_a_body_that_is_cancelled_leaves_no_effect_and_no_claim(once, waiting, effects):
    entered = asyncio.Event()
    async with waiting.connection() as connection:

        async def call():
            async with once.transaction("k", connection):
                await waiting.act(connection)
                entered.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(call())
        await entered.wait()
        await cancelled(task)
        assert waiting.is_idle(connection)
        async with once.transaction("k", connection):  # it is as good as new
            await waiting.act(connection)
    assert (effects(), waiting.status(once)) == (["effect"], [("COMPLETED", 1)])


@pytest.mark.parametrize("point", range(6))
async def test_a_cancellation_at_any_moment_leaves_both_or_neither(once, waiting, effects, point):
    async with waiting.connection() as connection:
        async with once.transaction("warm", connection):
            pass

        async def call():
            async with once.transaction("k", connection):
                await waiting.act(connection)

        task = asyncio.create_task(call())
        await asyncio.sleep(0.002 * point)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert waiting.is_idle(connection)
    done = [state for state, _ in waiting.status(once)].count("COMPLETED") - 1
    assert effects() == ["effect"] * done


async def test_a_scope_that_cancels_every_await_commits_both(once, waiting, effects):
    async with waiting.connection() as connection:
        with anyio.CancelScope() as scope:
            async with once.transaction("k", connection):
                await waiting.act(connection)
                scope.cancel()
    assert (effects(), waiting.status(once)) == (["effect"], [("COMPLETED", 1)])


async def test_a_coroutine_that_is_closed_in_the_body_rolls_back(once, waiting, effects):
    async with waiting.connection() as connection:

        async def call():
            async with once.transaction("k", connection):
                await waiting.act(connection)
                await asyncio.get_running_loop().create_future()

        running, step = call(), None
        while step is None or (await asyncio.wait([step], timeout=1) and step.done()):
            step = running.send(None)
            await asyncio.sleep(0)
        running.close()  # as a loop does that is closing: it is never resumed
        with contextlib.suppress(Exception):
            await waiting.sql(connection, "ROLLBACK")
    assert (effects(), waiting.status(once)) == ([], [])


async def test_a_commit_that_hangs_lets_a_cancelled_caller_go(once, waiting, effects, proxy, through):
    async with waiting.connection(through) as connection:

        async def call():
            async with once.transaction("k", connection):
                await waiting.act(connection)
                proxy.plan = "freeze"

        task = asyncio.create_task(call())
        while not proxy.commits:
            await asyncio.sleep(0.01)
        await cancelled(task)
    proxy.close()
    assert effects() == []


@pytest.mark.parametrize("place", ["thread", "task"])
async def test_a_body_elsewhere_outlives_its_cancelled_handler_whole(once, blocking, effects, place):
    """Rolled back by the handler's guard, its next statement would commit alone."""
    begun, over = threading.Event(), threading.Event()

    async def body(claim):
        async with blocking.connection() as connection:
            if hasattr(connection, "inc_thread_sharing"):
                connection.inc_thread_sharing()  # Django's
            async with blocking.within(claim.transaction(connection)) as tx:
                begun.set()
                while not over.is_set():
                    await asyncio.sleep(0.01)
                await blocking.act(connection)
                tx.result = "made"

    inside = []

    async def handle():
        own = asyncio.to_thread(asyncio.run, body(current())) if place == "thread" else body(current())
        inside.append(asyncio.create_task(own))
        await asyncio.shield(inside[0])

    call = asyncio.create_task(once.run_async("k", handle))
    while not begun.is_set():
        await asyncio.sleep(0.01)
    await cancelled(call)
    over.set()
    await asyncio.gather(*inside, return_exceptions=True)
    assert (effects(), blocking.status(once)) in ((["effect"], [("COMPLETED", 1)]), ([], [("IN_PROGRESS", 1)]))


@pytest.mark.parametrize("part", ["transaction", "step"])
def test_an_interrupt_while_a_commit_is_asked_about_leaves_nothing_uncommitted(
    once, blocking, effects, proxy, through, part
):
    async def body(claim, arm):
        async with blocking.connection(through) as connection:
            made = claim.transaction(connection) if part == "transaction" else claim.step_transaction("s", connection)
            async with blocking.within(made):
                await blocking.act(connection)
                proxy.plan = "hold"
                arm()

    with interrupted(0.4) as arm, pytest.raises(ZeroDivisionError), once.claim("k") as claim:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(body(claim, arm))
        proxy.release()
        raise ZeroDivisionError
    ((record, _),) = once.ledger.records()
    # Nobody knows whether the step was made, so its attempt is not given back at once.
    assert record.status == ("RELEASED" if part == "transaction" else "IN_PROGRESS")
    assert (effects(), record.result, record.steps) == ([], None, None)


async def test_an_interrupt_of_a_blocking_body_rolls_back(once, blocking, effects):
    async with blocking.connection() as connection:
        with interrupted(0.1) as arm, pytest.raises(KeyboardInterrupt):
            async with blocking.within(once.transaction("k", connection)):
                await blocking.act(connection)
                arm()
                await blocking.sql(connection, blocking.nap)
        assert blocking.is_idle(connection)
    assert (effects(), blocking.status(once)) == ([], [])


async def test_a_transaction_that_was_left_behind_is_rolled_back(once, blocking, effects):
    async with blocking.connection() as connection:
        left = once.transaction("k", connection)
        left.__enter__()
        await blocking.act(connection)
        del left
        gc.collect()
        CURRENT.set(None)  # its block was never left
        assert blocking.is_idle(connection)
    assert (effects(), blocking.status(once)) == ([], [])


async def test_heartbeats_beside_a_transaction_are_not_held_up_by_it(schema, blocking, effects):
    once = Once(schema, lease=4, heartbeat=0.2)
    async with blocking.connection() as connection:
        with once.claim("other") as other, once.claim("k") as claim, claim.transaction(connection):
            own = claim.record.beat
            time.sleep(2)
            assert claim.record.beat == own  # the transaction's
            assert not other.lost
            assert other.record.beat >= 3  # one that waits for the transaction takes a second
    assert blocking.status(once) == [("COMPLETED", 1)] * 2
    once.close()


async def test_a_forked_child_that_leaves_the_block_ends_no_transaction(once, blocking, effects):
    async with blocking.connection() as connection:
        child = None
        try:
            async with blocking.within(once.transaction("k", connection)) as transaction:
                await blocking.act(connection)
                child = os.fork()
                if child == 0:
                    raise RuntimeError
                os.waitpid(child, 0)
                transaction.result = "the parent's"
        finally:
            if child == 0:
                gc.collect()
                os._exit(0)
    assert (effects(), blocking.status(once)) == (["effect"], [("COMPLETED", 1)])
