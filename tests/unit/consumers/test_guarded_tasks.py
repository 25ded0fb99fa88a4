"""What a task queue is told of each end of a guarded task."""

import asyncio
import os

import pytest

from faults.injected import Faults, fail_before, when
from onceward import Claim, Once, StoreError, errors
from onceward.consumers.delivery import MalformedRecord
from onceward.consumers.tasks import GuardedTask, TaskCall
from tables import each


class Later(Exception):
    pass


def task_of(function, once=None, postpones=None, **options):
    options.setdefault("name", "charge")
    return GuardedTask(once or Once("memory:"), function, "toy", postpones or (lambda error: False), **options)


def breakable():
    """Return a ledger, and the list that breaks it as long as something is in it."""
    broken = []
    return Once(Faults(Once("memory:").store, when(lambda ask: bool(broken), fail_before(StoreError)))), broken


async def in_a_group(work):
    async with asyncio.TaskGroup() as group:
        group.create_task(work())


async def with_a_cause(work):
    try:
        await work()
    except Exception as error:
        raise LookupError from error


def call(*args, id="t-1", **kwargs):
    return TaskCall(id, args, kwargs)


def test_a_task_runs_once_for_its_id_or_its_arguments():
    runs = []
    by_id, by_arguments = (
        task_of(lambda order: runs.append(order) or len(runs), **options) for options in ({}, {"key": "order.id"})
    )
    ends = [by_id.call(call({"id": 1})), by_id.call(call({"id": 1})), by_id.call(call({"id": 1}, id="t-2"))]
    assert [(end.status, end.result()) for end in ends] == [("done", 1), ("done", 1), ("done", 2)]
    calls = call({"id": 1}), call({"id": 1}, id="t-2"), call(order={"id": 1}, id=None)
    assert [by_arguments.call(one).result() for one in calls] == [3, 3, 3]

    async def charge(order):
        return order["id"]

    coroutine = task_of(charge)
    assert coroutine.is_async
    assert [asyncio.run(coroutine.call_async(call({"id": number}))).result() for number in (7, 8)] == [7, 7]


@each(("known_for", "seconds"), [(None, 40), (0.1, 1), (8, 8), (99, 40)])
def test_a_busy_key_comes_again_when_it_is_known_twice_as_long(known_for, seconds):
    def charge():
        raise errors.Busy("charge:t-1", 40, known_for=known_for)

    end = task_of(charge).call(call())
    assert (end.status, end.seconds) == ("again", seconds)


@each("options", [{}, {"per": "1h"}])
@each(
    "error",
    [
        errors.ResultNotRecorded("inner", "paid", "away"),
        errors.ResultUnavailable("inner", "too large"),
        errors.Busy("inner", 40),
        ZeroDivisionError(),
    ],
)
def test_an_error_of_an_inner_function_is_a_failure_of_the_task(options, error):
    def charge():
        raise error

    end = task_of(charge, **options).call(call())
    assert (end.status, end.error) == ("failed", error)


def test_a_ledger_that_gives_no_answer_uses_up_no_retry():
    once, broken = breakable()
    end = task_of(lambda: broken.append(1) or "paid", once).call(call())
    assert (end.status, end.result()) == ("done", "paid")  # its end cannot be recorded, and it must not come again
    end = task_of(lambda: None, once).call(call(id="t-2"))
    assert (end.status, type(end.error)) == ("again", StoreError)


@each(
    ("one", "error"),
    [
        (call({}), errors.KeyMissing),
        (call(), MalformedRecord),
        (call(1, 2), MalformedRecord),
        (call({"id": 1, "cents": 6}), errors.Mismatch),
        (call({"id": "parked"}), errors.Parked),
    ],
)
def test_calls_that_cannot_run_are_refused(one, error):
    once = Once("memory:")
    task = task_of(lambda order: None, once, key="order.id", fingerprint=True)
    assert task.call(call({"id": 1, "cents": 5})).status == "done"
    once.acquire("parked", name="charge").park("by hand")
    end = task.call(one)
    assert (end.status, type(end.error)) == ("refused", error)
    assert isinstance(task_of(lambda: None).call(call(id=None)).error, errors.KeyMissing)  # outside the queue
    for key, kind in ((int, "ValueError"), (lambda card: {}[card], "KeyError")):
        secret = task_of(lambda card: None, key=key).call(call("4111-x"))
        assert secret.why == str(secret.error)
        assert secret.why.partition("nothing ran: ")[2].removeprefix("key= raised ") == kind
    assert "by hand" not in end.why  # it may quote the payload, too


def test_a_final_exception_is_recorded_and_not_retried():
    runs = []

    class Declined(Exception):
        key = "card-7"  # of its own, and none of the ledger

    def charge():
        runs.append(1)
        raise Declined("card 42")

    task = task_of(charge, final=(Declined,))
    ends = [task.call(call()), task.call(call())]
    assert [(end.status, str(end.error)) for end in ends] == [("ended", "card 42")] * 2
    assert runs == [1]


def test_a_periodic_task_runs_once_per_window_whoever_sends_it():
    runs = []
    task = task_of(runs.append, per="1h", at="object")
    for number, moment in enumerate(["2026-01-01T10:00:00Z", "2026-01-01T10:59:00Z", "2026-01-01T11:00:00Z"]):
        assert task.call(call(moment, id=f"t-{number}")).status == "done"
    assert len(runs) == 2


def test_tasks_and_jobs_of_a_once_with_a_name_have_keys_of_their_own():
    once, ran = Once("memory:", name="shop"), []

    def report(at: str):
        ran.append(("report", at))

    def cleanup(at: str):
        ran.append(("cleanup", at))

    for function in (report, cleanup):
        task_of(function, once, key="at", name=None).call(call("noon"))
        task_of(function, once, per="1h", at="at", name=None).call(call("2026-01-01T10:00:00Z"))
        once.per("1h", at="at")(function)("2026-01-01T11:00:00Z")
    assert len(ran) == 6
    assert all(record.key.startswith("shop.test_guarded_tasks.") for record, _ in once.ledger.records())


@each(
    ("options", "says"),
    [
        ({"at": "when"}, "per="),
        ({"fingerprint": True}, "key="),
        ({"key": "ordre.id"}, "ordre"),
        ({"on_busy": "skip"}, "whose worker was killed"),
    ],
)
def test_options_that_do_not_fit_are_refused_at_once(options, says):
    with pytest.raises(ValueError, match=says):
        task_of(lambda order: None, **options)


def test_a_task_that_postpones_itself_gives_its_key_back():
    once = Once("memory:")

    def charge():
        once.claim(os.urandom(8)).__enter__()  # an inner claim that stays open is not given back instead
        raise Later

    task = task_of(charge, once, postpones=lambda error: isinstance(error, Later), on_error="park")
    for _ in range(2):
        end = task.call(call())
        assert (end.status, type(end.error)) == ("failed", Later)


@each("way", [in_a_group, with_a_cause])
def test_what_was_not_recorded_or_lost_decides_the_end_however_that_is_raised(way):
    once, broken = breakable()

    async def steps(claim: Claim):
        await way(lambda: claim.step_async("pay", broken.append, 1))

    async def completes(claim: Claim):
        broken.append(1)
        await way(lambda: claim.complete_async("paid"))

    async def loses(claim: Claim):
        claim.lose()  # as a heartbeat does that finds another owner
        await way(lambda: claim.step_async("pay", print))

    for function, status, error in (
        (steps, "again", errors.StepNotRecorded),
        (completes, "done", None),
        (loses, "again", errors.LeaseLost),
    ):
        broken.clear()
        end = asyncio.run(task_of(function, once, name=function.__name__, final=(LookupError,)).call_async(call()))
        assert (end.status, type(end.error) if error else end.result()) == (status, error or "paid")


def test_a_task_that_is_completed_in_vain_does_not_give_its_key_back_when_it_postpones_itself():
    once, broken = breakable()

    def pay(claim: Claim):
        broken.append(1)
        try:
            claim.complete("paid")
        except errors.ResultNotRecorded as error:
            broken.clear()
            raise Later from error

    task = task_of(pay, once, lambda error: isinstance(error, Later))
    assert [type(task.call(call()).error) for _ in range(2)] == [Later, errors.Busy]
