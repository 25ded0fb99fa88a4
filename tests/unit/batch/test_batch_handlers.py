"""Handlers of batches that raise, hang or run batches themselves; and groups."""

import asyncio
import threading
import time
from concurrent.futures import CancelledError

import pytest

from onceward import current
from onceward.core.record import IN_PROGRESS, RELEASED
from queues.batches import PATIENCE, batch_of, orders, standing, statuses, within_patience


@pytest.mark.parametrize("error", [StopIteration, CancelledError])
def test_a_plain_handler_fails_with_an_error_that_no_future_takes(once, error):
    def handle(order):
        if order["id"] == "x":
            raise error
        return 1

    outcomes = within_patience(batch_of(once, handle).run_async(orders("a", "x", "b")))
    assert statuses(outcomes) == ["done", "failed", "done"]
    assert error.__name__ in standing(once, "x").error
    assert standing(once, "x").status == RELEASED


@pytest.mark.parametrize("awaited", [False, True])
def test_a_handler_in_which_something_was_cancelled_harms_no_other(once, awaited):
    def handle(order):
        if order["id"] == "x":
            raise asyncio.CancelledError  # as from asyncio.run(...) of what was cancelled

    async def handle_async(order):
        handle(order)

    records, batch = orders("a", "x", "b"), batch_of(once, handle_async if awaited else handle)
    outcomes = asyncio.run(batch.run_async(records)) if awaited else batch.run(records)
    assert statuses(outcomes) == ["done", "failed", "done"]
    assert "interrupted" in str(outcomes[1].error)
    assert standing(once, "x").status == IN_PROGRESS


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

    assert statuses(batch_of(once, fail_beside).run(orders("a"))) == ["failed"]
    assert (ended, standing(once, "a").status, "slow" in standing(once, "a").steps) == ([1], RELEASED, True)


def test_a_handler_that_fails_beside_a_step_that_outlasts_the_time_left_stays_claimed(once):
    begun, goes_on, steps = threading.Event(), threading.Event(), []

    def fail_beside(order):
        steps.append(threading.Thread(target=current().step, args=("endless", lambda: begun.set() or goes_on.wait(30))))
        steps[0].start()
        begun.wait(30)
        raise ValueError

    assert statuses(batch_of(once, fail_beside).run(orders("a"), time_left=1.0)) == ["failed"]
    assert standing(once, "a").status == IN_PROGRESS
    goes_on.set()
    steps[0].join()


def test_a_handler_may_run_its_own_batch_in_the_same_event_loop(once):
    async def handle(order):
        if order["id"] == "outer":
            return statuses(await batch.run_async(orders("inner", "other")))
        return 1

    batch = batch_of(once, handle, concurrency=1)
    assert within_patience(batch.run_async(orders("outer")))[0].value == ["done", "done"]


async def test_a_handler_that_hangs_in_a_thread_does_not_stop_later_batches(once):
    go_on = threading.Event()

    def handle(order):
        if order["id"] == "hangs":
            go_on.wait(PATIENCE)

    batch = batch_of(once, handle, concurrency=1)
    try:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(batch.run_async(orders("hangs")), 0.1)
        assert statuses(await asyncio.wait_for(batch.run_async(orders("a")), 2)) == ["done"]
    finally:
        go_on.set()


def test_a_group_that_cannot_be_compared_is_malformed_and_given_back(once):
    records = [{"id": "a"}, {"id": "x", "group": []}]
    outcomes = batch_of(once, lambda order: 1, group=lambda order: order.get("group")).run(records)
    assert statuses(outcomes) == ["done", "malformed"]
    assert not [record for record in once.store.records.values() if record.status == IN_PROGRESS]


def test_a_record_does_not_get_mismatch_of_another_input_under_its_key(once):
    batch = batch_of(once, lambda order: "made", fingerprint="order.sum")
    batch.run([{"id": "a", "sum": 1}])
    records = [{"id": "a", "sum": 2}, {"id": "a", "sum": 1}]
    assert statuses(batch.run(records)) == ["mismatch", "deferred"]
    assert statuses(batch.run(records[1:])) == ["replayed"]


def test_a_group_waits_for_an_unfinished_key_that_another_group_has(once):
    ran = []

    def handle(order):
        ran.append(order["id"])
        if order["id"] == "shared":
            time.sleep(0.1)
            raise ValueError

    records = [{"id": "shared", "group": "x"}, {"id": "shared", "group": "y"}, {"id": "after", "group": "y"}]
    outcomes = batch_of(once, handle, group=lambda order: order["group"], concurrency=2).run(records)
    assert statuses(outcomes) == ["failed", "failed", "deferred"]
    assert ran == ["shared"]
