"""What a guarded call came to: a run or a replay, of which attempt, and when; and its errors, which can be copied."""

import asyncio
import copy
import pickle

import pytest

from onceward import (
    Busy,
    Completed,
    LeaseLost,
    Parked,
    ResultNotRecorded,
    StoreError,
)
from tables import each

pytestmark = pytest.mark.sampled(form=2)


@pytest.mark.parametrize("form", ["decorated", "decorated_async", "run", "run_async"])
def test_a_run_is_told_from_its_replay(once, form):
    failed = []

    def double(order):
        if not failed:
            failed.append(order)
            raise ValueError(order)
        return order * 2

    async def double_async(order):
        return double(order)

    named = once.using(name="double")
    call = {
        "decorated": named(key="order")(double).outcome,
        "decorated_async": lambda order: asyncio.run(named(key="order")(double_async).outcome(order)),
        "run": lambda order: named.run_outcome(order, double, order),
        "run_async": lambda order: asyncio.run(named.run_outcome_async(order, double_async, order)),
    }[form]
    with pytest.raises(ValueError, match="7"):
        call(7)
    first, second = call(7), call(7)
    assert (first.value, first.replayed, first.attempt) == (14, False, 2)
    assert (second.value, second.replayed, second.attempt) == (14, True, 2)
    ((record, _),) = once.ledger.records()
    assert first.recorded_at == second.recorded_at == record.updated_at >= record.created_at


def test_an_answer_from_memory_is_a_replay_too(once):
    guarded = once(key="order", cache=10, name="n")(lambda order: order)
    first, second = guarded.outcome(1), guarded.outcome(1)
    assert (first.replayed, second.replayed, second.attempt) == (False, True, 1)
    assert first.recorded_at == second.recorded_at


@each(
    "error",
    [
        Busy("k", 1.5),
        Parked("k", 3, "Failure: no"),
        Completed("k", {"a": 1}),
        LeaseLost("k", "complete"),
        ResultNotRecorded("k", [1], "the disk is full"),
        StoreError("x", transient=True),
    ],
)
def test_errors_can_be_copied_and_pickled(error):
    for again in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
