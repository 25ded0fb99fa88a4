"""Batches, and checkpoints beside them, that are cut short, and whose handlers raise, hang or run batches themselves; and groups."""

import asyncio
import functools
import os
import threading
import time
from concurrent.futures import CancelledError

import pytest

from observing import note_outcomes
from onceward import LeaseLost, Once, current
from onceward.core.record import IN_PROGRESS, RELEASED
from onceward.stores.memory import MemoryStore
from onceward.testing.clock import ManualClock
from queues import batches


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

    batch = batches.batch_of(once, handle, concurrency=concurrency, group=lambda order: 0)
    orders = batches.orders("a", "b", "c")
    outcomes = batches.within_patience(batch.run_async(orders)) if awaiting else batch.run(orders)
    assert ran == ["a"]
    assert batches.statuses(outcomes)[1:] == ["deferred", "deferred"]
    assert type(outcomes[1].error) is LeaseLost
    assert batches.standing(once, "b").status == IN_PROGRESS  # the other's
    assert batches.standing(once, "c").status == RELEASED
    assert batches.standing(once, "c").attempts == 0


KEYS = ["a", "b", "c", "d", "e"]


def one_after_the_other(once, began, ended, concurrency=1):
    async def handle(order):
        began.append(order["id"])
        await asyncio.sleep(0)
        ended.append(order["id"])

    return batches.batch_of(once, handle, concurrency=concurrency).run_async(batches.orders(*KEYS))


two_at_a_time = functools.partial(one_after_the_other, concurrency=2)


async def flushed_by_two(once, began, ended):
    done = []

    async def write(items):
        began.extend(one["id"] for one in items)
        await asyncio.sleep(0)
        ended.extend(one["id"] for one in items)

    try:
        async with once.checkpoint(write, key="item.id", name="b", count=2, on_done=done.extend) as sink:
            for order in batches.orders(*KEYS):
                await sink.add(order)
    finally:
        assert {one["id"] for one in done} <= set(ended)


@pytest.mark.slow
@pytest.mark.parametrize("cancels", [1, 2])
@pytest.mark.parametrize(("work", "points"), [(one_after_the_other, 10), (two_at_a_time, 10), (flushed_by_two, 20)])
async def test_work_that_is_cancelled_at_any_point_leaves_nothing_undecided(work, points, cancels):
    async def trial(turns):
        once = Once(batches.Slow(), lease=10)
        began, ended = [], []
        task = asyncio.ensure_future(work(once, began, ended))
        for _ in range(turns):
            await asyncio.sleep(0)
        for _ in range(cancels):
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait((task,))
        batches.settled_rightly(once, began, ended, KEYS)
        over = not task.cancelled()
        del task
        assert not batches.renewed(once.store)
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
        await asyncio.wait_for(batches.batch_of(once, handle).run_async(batches.orders("a")), 0.1)
    assert [one.status for one in told] == ["done"]


async def test_duplicates_do_not_wait_for_the_turns_of_others(once):
    async def handle(order):
        await go_on.wait()

    batches.batch_of(once, lambda order: 1).run(batches.orders("known"))
    batch, go_on = batches.batch_of(once, handle, concurrency=1), asyncio.Event()
    slow = asyncio.create_task(batch.run_async(batches.orders("slow")))
    await asyncio.sleep(0.05)
    try:
        assert batches.statuses(await asyncio.wait_for(batch.run_async(batches.orders("known")), 1)) == ["replayed"]
    finally:
        go_on.set()
        await slow


def test_a_forked_process_has_threads_of_its_own(once):
    batch = batches.batch_of(once, lambda order: os.getpid())
    asyncio.run(batch.run_async(batches.orders("parents")))
    child = os.fork()
    if child == 0:
        try:
            (outcome,) = batches.within_patience(batch.run_async(batches.orders("childs")))
            os._exit(0 if outcome.value == os.getpid() else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("error", [StopIteration, CancelledError])
def test_a_plain_handler_fails_with_an_error_that_no_future_takes(once, error):
    def handle(order):
        if order["id"] == "x":
            raise error
        return 1

    outcomes = batches.within_patience(batches.batch_of(once, handle).run_async(batches.orders("a", "x", "b")))
    assert batches.statuses(outcomes) == ["done", "failed", "done"]
    assert error.__name__ in batches.standing(once, "x").error
    assert batches.standing(once, "x").status == RELEASED


@pytest.mark.parametrize("awaited", [False, True])
def test_a_handler_in_which_something_was_cancelled_harms_no_other(once, awaited):
    def handle(order):
        if order["id"] == "x":
            raise asyncio.CancelledError  # as from asyncio.run(...) of what was cancelled

    async def handle_async(order):
        handle(order)

    records, batch = batches.orders("a", "x", "b"), batches.batch_of(once, handle_async if awaited else handle)
    outcomes = asyncio.run(batch.run_async(records)) if awaited else batch.run(records)
    assert batches.statuses(outcomes) == ["done", "failed", "done"]
    assert "interrupted" in str(outcomes[1].error)
    assert batches.standing(once, "x").status == IN_PROGRESS


def test_a_failed_handler_waits_for_steps_that_still_run(once):
    """Given back before, its key would be handled again beside them."""
    begun, ended = threading.Event(), []

    def slow():
        begun.set()
        time.sleep(0.2)
        ended.append(1)

    def fail_beside(order):
        threading.Thread(target=current().step, args=("slow", slow)).start()
        begun.wait(30)
        raise ValueError

    assert batches.statuses(batches.batch_of(once, fail_beside).run(batches.orders("a"))) == ["failed"]
    held = batches.standing(once, "a")
    assert (ended, held.status, "slow" in held.steps) == ([1], RELEASED, True)


def test_a_handler_that_fails_beside_a_step_that_outlasts_the_time_left_stays_claimed(once):
    begun, goes_on, steps = threading.Event(), threading.Event(), []

    def fail_beside(order):
        steps.append(threading.Thread(target=current().step, args=("endless", lambda: begun.set() or goes_on.wait(30))))
        steps[0].start()
        begun.wait(30)
        raise ValueError

    assert batches.statuses(batches.batch_of(once, fail_beside).run(batches.orders("a"), time_left=1.0)) == ["failed"]
    assert batches.standing(once, "a").status == IN_PROGRESS
    goes_on.set()
    steps[0].join()


def test_a_handler_may_run_its_own_batch_in_the_same_event_loop(once):
    async def handle(order):
        if order["id"] == "outer":
            return batches.statuses(await batch.run_async(batches.orders("inner", "other")))
        return 1

    batch = batches.batch_of(once, handle, concurrency=1)
    assert batches.within_patience(batch.run_async(batches.orders("outer")))[0].value == ["done", "done"]


async def test_a_handler_that_hangs_in_a_thread_does_not_stop_later_batches(once):
    go_on = threading.Event()

    def handle(order):
        if order["id"] == "hangs":
            go_on.wait(batches.PATIENCE)

    batch = batches.batch_of(once, handle, concurrency=1)
    try:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(batch.run_async(batches.orders("hangs")), 0.1)
        assert batches.statuses(await asyncio.wait_for(batch.run_async(batches.orders("a")), 2)) == ["done"]
    finally:
        go_on.set()


def test_a_group_that_cannot_be_compared_is_malformed_and_given_back(once):
    records = [{"id": "a"}, {"id": "x", "group": []}]
    outcomes = batches.batch_of(once, lambda order: 1, group=lambda order: order.get("group")).run(records)
    assert batches.statuses(outcomes) == ["done", "malformed"]
    assert not [record for record in once.store.records.values() if record.status == IN_PROGRESS]


def test_a_record_does_not_get_mismatch_of_another_input_under_its_key(once):
    batch = batches.batch_of(once, lambda order: "made", fingerprint="order.sum")
    batch.run([{"id": "a", "sum": 1}])
    records = [{"id": "a", "sum": 2}, {"id": "a", "sum": 1}]
    assert batches.statuses(batch.run(records)) == ["mismatch", "deferred"]
    assert batches.statuses(batch.run(records[1:])) == ["replayed"]


def test_a_group_waits_for_an_unfinished_key_that_another_group_has(once):
    ran = []

    def handle(order):
        ran.append(order["id"])
        if order["id"] == "shared":
            time.sleep(0.1)
            raise ValueError

    records = [{"id": "shared", "group": "x"}, {"id": "shared", "group": "y"}, {"id": "after", "group": "y"}]
    outcomes = batches.batch_of(once, handle, group=lambda order: order["group"], concurrency=2).run(records)
    assert batches.statuses(outcomes) == ["failed", "failed", "deferred"]
    assert ran == ["shared"]
