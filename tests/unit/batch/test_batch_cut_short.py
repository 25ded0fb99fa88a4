"""Batches, and checkpoints beside them, that are cut short: by lost leases, cancellations, exits, interrupts and forks."""

import asyncio
import functools
import os

import pytest

from observing import note_outcomes
from onceward import LeaseLost, Once, current
from onceward.core.record import IN_PROGRESS, RELEASED
from onceward.stores.memory import MemoryStore
from onceward.testing.clock import ManualClock
from queues.batches import (
    Slow,
    batch_of,
    orders,
    renewed,
    settled_rightly,
    standing,
    statuses,
    within_patience,
)


@pytest.mark.parametrize(("concurrency", "awaiting"), [(1, False), (3, False), (1, True)])
def test_a_handler_is_not_begun_when_its_claim_was_lost_while_it_waited(concurrency, awaiting):
    clock = ManualClock()
    once = Once(MemoryStore(clock), clock=clock, lease=10)
    other = Once(once.store, clock=clock, lease=10)
    ran = []

    def handle(order):
        ran.append(order["id"])
        if order["id"] == "a":
            clock.advance(11)  # such as a process that was stopped
            other.acquire("b", name="b")

    batch = batch_of(once, handle, concurrency=concurrency, group=lambda order: 0)
    outcomes = within_patience(batch.run_async(orders("a", "b", "c"))) if awaiting else batch.run(orders("a", "b", "c"))
    assert ran == ["a"]
    assert statuses(outcomes)[1:] == ["deferred", "deferred"]
    assert type(outcomes[1].error) is LeaseLost
    assert standing(once, "b").status == IN_PROGRESS  # the other's
    assert standing(once, "c").status == RELEASED
    assert standing(once, "c").attempts == 0


KEYS = ["a", "b", "c", "d", "e"]


def one_after_the_other(once, began, ended, concurrency=1):
    async def handle(order):
        began.append(order["id"])
        await asyncio.sleep(0)
        ended.append(order["id"])

    return batch_of(once, handle, concurrency=concurrency).run_async(orders(*KEYS))


two_at_a_time = functools.partial(one_after_the_other, concurrency=2)


async def flushed_by_two(once, began, ended):
    done = []

    async def write(items):
        began.extend(one["id"] for one in items)
        await asyncio.sleep(0)
        ended.extend(one["id"] for one in items)

    try:
        async with once.checkpoint(write, key="item.id", name="b", count=2, on_done=done.extend) as sink:
            for order in orders(*KEYS):
                await sink.add(order)
    finally:
        assert {one["id"] for one in done} <= set(ended)


@pytest.mark.slow
@pytest.mark.parametrize("cancels", [1, 2])
@pytest.mark.parametrize(("work", "points"), [(one_after_the_other, 10), (two_at_a_time, 10), (flushed_by_two, 20)])
async def test_work_that_is_cancelled_at_any_point_leaves_nothing_undecided(work, points, cancels):
    async def trial(turns):
        once = Once(Slow(), lease=10)
        began, ended = [], []
        task = asyncio.ensure_future(work(once, began, ended))
        for _ in range(turns):
            await asyncio.sleep(0)
        for _ in range(cancels):
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait((task,))
        settled_rightly(once, began, ended, KEYS)
        over = not task.cancelled()
        del task
        assert not renewed(once.store)
        return over

    turns = 0
    while not await trial(turns):
        turns += 1
    assert turns > points


async def test_a_handler_cancelled_after_it_completed_its_claim_is_told_as_done(once):
    told = []

    async def handle(order):
        await current().complete_async("mine")
        await asyncio.sleep(60)

    note_outcomes(told.append)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(batch_of(once, handle).run_async(orders("a")), 0.1)
    assert [one.status for one in told] == ["done"]


async def test_duplicates_do_not_wait_for_the_turns_of_others(once):
    async def handle(order):
        await go_on.wait()

    batch_of(once, lambda order: 1).run(orders("known"))
    batch, go_on = batch_of(once, handle, concurrency=1), asyncio.Event()
    slow = asyncio.create_task(batch.run_async(orders("slow")))
    await asyncio.sleep(0.05)
    try:
        assert statuses(await asyncio.wait_for(batch.run_async(orders("known")), 1)) == ["replayed"]
    finally:
        go_on.set()
        await slow


def test_a_forked_process_has_threads_of_its_own(once):
    batch = batch_of(once, lambda order: os.getpid())
    asyncio.run(batch.run_async(orders("parents")))
    child = os.fork()
    if child == 0:
        try:
            (outcome,) = within_patience(batch.run_async(orders("childs")))
            os._exit(0 if outcome.value == os.getpid() else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
