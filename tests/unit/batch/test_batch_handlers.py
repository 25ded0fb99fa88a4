"""Handlers of batches that raise, hang or run batches themselves; and hooks, groups and times that do not fit."""

import asyncio
import functools
import gc
import logging
import operator
import threading
import time
from unittest.mock import AsyncMock, Mock

import pytest

from batches import PATIENCE, batch_of, orders, standing, statuses, within_patience
from onceward import Once
from onceward.batch.recorder import LINGER
from onceward.core.record import IN_PROGRESS
from onceward.stores.memory import MemoryStore


@pytest.fixture
def once():
    return Once(MemoryStore(), lease=10)


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL + 1, "onceward")


# --- leases -------------------------------------------------------------------------------------------------------


# --- handlers that raise what a handler should not ------------------------------------------------------------------


def test_a_plain_handler_that_raises_stop_iteration_does_not_hang_batch(once):
    def handle(order):
        return next(iter(())) if order["id"] == "x" else 1

    outcomes = within_patience(batch_of(once, handle).run_async(orders("a", "x", "b")))
    assert statuses(outcomes) == ["done", "failed", "done"]
    assert "StopIteration" in standing(once, "x").error


def test_a_plain_handler_in_which_something_was_cancelled_harms_no_other(once):
    def handle(order):
        if order["id"] == "x":
            raise asyncio.CancelledError  # as from asyncio.run(...) of what was cancelled
        return 1

    outcomes = batch_of(once, handle).run(orders("a", "x", "b"))
    assert statuses(outcomes) == ["done", "failed", "done"]
    assert standing(once, "x").status == IN_PROGRESS


# --- batches in batches ---------------------------------------------------------------------------------------------


def test_a_handler_may_run_its_own_batch_in_the_same_event_loop(once):
    async def handle(order):
        if order["id"] == "outer":
            return statuses(await batch.run_async(orders("inner", "other")))
        return 1

    batch = batch_of(once, handle, concurrency=1)
    assert within_patience(batch.run_async(orders("outer")))[0].value == ["done", "done"]


def test_handlers_of_two_batches_may_run_each_others(once):
    async def ping(order):
        await asyncio.sleep(0.01)
        return statuses(await pong_batch.run_async(orders(f"{order['id']}>"))) if order["id"] == "ping" else 1

    async def pong(order):
        await asyncio.sleep(0.01)
        return statuses(await ping_batch.run_async(orders(f"<{order['id']}"))) if order["id"] == "pong" else 1

    ping_batch = batch_of(once, ping, name="ping", concurrency=1)
    pong_batch = batch_of(once, pong, name="pong", concurrency=1)

    async def both():
        return await asyncio.gather(ping_batch.run_async(orders("ping")), pong_batch.run_async(orders("pong")))

    assert [one[0].value for one in within_patience(both())] == [["done"], ["done"]]


def test_plain_handler_in_thread_may_run_its_own_batch_in_loop_of_its_own(once):
    def handle(order):
        if order["id"] == "outer":
            return statuses(asyncio.run(asyncio.wait_for(batch.run_async(orders("inner")), 2)))
        return 1

    batch = batch_of(once, handle, concurrency=1)
    assert within_patience(batch.run_async(orders("outer")))[0].value == ["done"]


def test_a_handler_that_hangs_in_a_thread_does_not_stop_later_batches(once):
    go_on = threading.Event()

    def handle(order):
        if order["id"] == "hangs":
            go_on.wait(PATIENCE)

    batch = batch_of(once, handle, concurrency=1)

    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(batch.run_async(orders("hangs")), 0.1)
        return await asyncio.wait_for(batch.run_async(orders("a")), 2)

    try:
        assert statuses(asyncio.run(main())) == ["done"]
    finally:
        go_on.set()


# --- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [float("inf"), 1e308])
def test_endless_time_is_no_limit(once, left):
    batch = batch_of(once, lambda order: time.sleep(1e-4))
    for part in ("a", "b"):
        outcomes = batch.run(orders(*(f"{part}{n}" for n in range(150))), time_left=left)
        assert statuses(outcomes) == ["done"] * 150


@pytest.mark.parametrize("left", [float("nan"), "5", True])
def test_what_is_no_time_is_refused_before_anything(once, left):
    batch = batch_of(once, lambda order: 1)
    with pytest.raises((ValueError, TypeError), match="time_left="):
        batch.run(orders("a"), time_left=left)
    with pytest.raises((ValueError, TypeError), match="time_left="):
        within_patience(batch.run_async(orders("a"), time_left=left))
    assert not once.store.records


async def coroutine(what): ...


class Awaiting:
    async def __call__(self, what): ...


@pytest.mark.parametrize("hook", [coroutine, functools.partial(coroutine), Awaiting(), AsyncMock()])
@pytest.mark.parametrize("option", ["group", "on_outcome"])
def test_hooks_that_would_have_to_be_awaited_are_refused(once, option, hook):
    with pytest.raises(TypeError, match=option):
        batch_of(once, lambda order: 1, **{option: hook})


@pytest.mark.parametrize("hook", [print, int, [].append, operator.itemgetter("id"), Mock(return_value=1)])
@pytest.mark.parametrize("option", ["group", "on_outcome"])
def test_hooks_of_any_other_kind_are_taken(once, option, hook):
    assert batch_of(once, lambda order: 1, **{option: hook})


class Strange:
    """A group that hashes and cannot be compared."""

    def __hash__(self):
        return 1

    def __eq__(self, other):
        raise ValueError("not comparable")


def test_groups_that_cannot_be_compared_are_malformed_and_given_back(once):
    records = [{"id": "a"}, {"id": "x", "group": Strange()}, {"id": "y", "group": Strange()}]
    outcomes = batch_of(once, lambda order: 1, group=lambda order: order.get("group")).run(records)
    assert statuses(outcomes) == ["done", "done", "malformed"]
    assert not [record for record in once.store.records.values() if record.status == IN_PROGRESS]


# --- duplicates -----------------------------------------------------------------------------------------------------


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


# --- telling --------------------------------------------------------------------------------------------------------


class Exit(BaseException):
    """What no ``except Exception`` catches, and no event loop goes down with."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("awaiting", [False, True])
def test_an_exit_out_of_on_outcome_loses_no_outcome(once, awaiting, caplog):
    told = []

    def tell(outcome):
        told.append(outcome.record["id"])
        if len(told) == 1:
            raise Exit

    def handle(order):
        time.sleep(4 * LINGER if order["id"] == "slow" else 0)

    async def handle_async(order):
        await asyncio.sleep(4 * LINGER if order["id"] == "slow" else 0)

    batch = batch_of(once, handle_async if awaiting else handle, on_outcome=tell)
    records = orders("a", "b", "c", "slow")
    outcomes = within_patience(batch.run_async(records)) if awaiting else batch.run(records)
    assert statuses(outcomes) == ["done"] * 4
    assert sorted(told) == ["a", "b", "c", "slow"]
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]


# --- interrupts -----------------------------------------------------------------------------------------------------
