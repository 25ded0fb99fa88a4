"""Batches on DynamoDB: how many requests they take, what every fault at every request does to them, and their leases."""

import asyncio
import json
import logging
import threading

import pytest

from onceward import Once, ResultNotRecorded, StoreError
from onceward.core.record import COMPLETED, IN_PROGRESS
from servers.proxy import Fault, Refuse
from waiting import within

pytestmark = pytest.mark.sampled(run=1, number=2)


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL + 1, "onceward")


@pytest.fixture(params=["blocking", "awaiting"])
def run(request):
    if request.param == "blocking":
        return lambda batch, records, **options: batch.run(records, **options)
    return lambda batch, records, **options: asyncio.run(batch.run_async(records, **options))


def orders(count):
    return [{"id": f"k{number}"} for number in range(count)]


def statuses(outcomes):
    return [outcome.status for outcome in outcomes]


def never(order):
    raise AssertionError(f"{order} ran again")


def test_ten_records_take_two_requests_and_ten_duplicates_two(run, url, proxy):
    once = Once(url)
    assert statuses(run(once.batch(lambda order: order, key="order.id", name="b"), orders(10))) == ["done"] * 10
    first, *asked = proxy.actions
    assert first == "GetItem"  # which, once, tells the server's time
    assert set(asked) == {"BatchExecuteStatement"}
    assert len(asked) < 6, "a claim and an end; on a busy machine, what ends later has a request of its own"
    proxy.seen.clear()
    assert statuses(run(once.batch(never, key="order.id", name="b"), orders(10))) == ["replayed"] * 10
    assert proxy.actions == ["BatchExecuteStatement"] * 2


def test_one_that_the_table_refuses_harms_no_other(run, url, proxy):
    def rule(seen):
        if seen.action == "BatchExecuteStatement":
            return Refuse("AccessDeniedException")
        if seen.body.get("Item", seen.body.get("Key", {})).get("key") == {"S": "b:k2"}:
            return Refuse("ValidationException")
        return None

    proxy.rule = rule
    once = Once(url)
    with pytest.warns(UserWarning, match="PartiQL"):
        outcomes = run(once.batch(lambda order: 1, key="order.id", name="b"), orders(5))
    assert statuses(outcomes) == ["done", "done", "failed", "done", "done"]
    assert isinstance(outcomes[2].error, StoreError)


def test_a_role_of_an_earlier_version_which_may_not_read_by_partiql_reads_each_record(run, url, proxy):
    once = Once(url)
    batch = once.batch(lambda order: 1, key="order.id", name="b")
    run(batch, orders(3))
    proxy.seen.clear()
    proxy.rule = lambda seen: Refuse("AccessDeniedException") if "SELECT" in json.dumps(seen.body) else None
    assert statuses(run(batch, orders(3))) == ["replayed"] * 3
    assert proxy.actions == ["BatchExecuteStatement", "BatchExecuteStatement", *["GetItem"] * 3]


THROTTLED = Refuse("ThrottlingException", 400, "Rate exceeded")


def about(seen, key):
    return f'"{key}"' in json.dumps(seen.body)


def throttling(key, when=lambda seen: True):
    """A rule that throttles whatever is asked for one key: its member of a batch, and its single writes."""

    def rule(seen):
        if not about(seen, key) or not when(seen):
            return None
        if seen.action != "BatchExecuteStatement":
            return THROTTLED
        number = next(n for n, one in enumerate(seen.body["Statements"]) if f'"{key}"' in json.dumps(one))

        def without(body):
            return {**body, "Statements": [one for n, one in enumerate(body["Statements"]) if n != number]}

        def refused(reply):
            error = {"Code": "ThrottlingError", "Message": "Rate exceeded"}
            reply["Responses"].insert(number, {"Error": error})
            return reply

        return Fault(edit_request=without, edit_reply=refused)

    return rule


def test_one_throttled_key_fails_alone(run, url, proxy):
    once = Once(url)
    batch = once.batch(lambda order: order["id"], key="order.id", name="b")
    proxy.rule = throttling("b:k4")
    outcomes = run(batch, orders(10))
    assert statuses(outcomes) == ["done"] * 4 + ["failed"] + ["done"] * 5
    assert isinstance(outcomes[4].error, StoreError)
    proxy.rule = lambda seen: None
    again = run(batch, orders(10))
    assert statuses(again) == ["replayed"] * 4 + ["done"] + ["replayed"] * 5


def test_one_key_whose_end_is_throttled_holds_up_no_others_end(run, url, proxy):
    once = Once(url, lease=3)
    batch = once.batch(lambda order: order["id"], key="order.id", name="b")
    proxy.rule = throttling("b:k4", lambda seen: COMPLETED in json.dumps(seen.body))
    outcomes = run(batch, orders(10))
    assert statuses(outcomes) == ["done"] * 4 + ["failed"] + ["done"] * 5
    assert isinstance(outcomes[4].error, ResultNotRecorded)
    records = {record.key: record.status for record, _ in once.ledger.records()}
    assert [records[f"b:k{n}"] for n in range(10)] == [COMPLETED] * 4 + [IN_PROGRESS] + [COMPLETED] * 5


@pytest.mark.parametrize("begins", ["at the claim", "at the end"])
def test_the_time_left_ends_a_batch_whose_server_is_silent(run, url, proxy, begins):
    silent = threading.Event()

    def handle(order):
        if begins == "at the end":
            silent.set()
        return order["id"]

    once = Once(f"{url}&timeout=0.3")
    batch = once.batch(handle, key="order.id", name="b")
    run(batch, [{"id": "the first"}])
    proxy.rule = lambda seen: Fault(delay=0.6, lose_request=True) if silent.is_set() else None

    def attempt(number):
        silent.clear()
        if begins == "at the claim":
            silent.set()
        return run(batch, [{"id": f"{number}:{n}"} for n in range(25)], time_left=2)

    outcomes = within(3.5, attempt)  # more, if each of the 25 keys were waited for in turn, again and again
    assert set(statuses(outcomes)) <= {"failed", "deferred"}
