"""Batches on DynamoDB: how many requests they take, what every fault at every request does to them, and their leases."""

import asyncio
import logging

import pytest

from onceward import Once, StoreError
from onceward.core.record import COMPLETED, RELEASED
from servers import Fault, Refuse


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
    assert proxy.actions == ["GetItem"] + ["BatchExecuteStatement"] * 2  # the first, once, tells the server's time
    proxy.seen.clear()
    assert statuses(run(once.batch(never, key="order.id", name="b"), orders(10))) == ["replayed"] * 10
    assert proxy.actions == ["BatchExecuteStatement", "BatchGetItem"]
    proxy.seen.clear()
    mixed = orders(20)
    assert statuses(run(once.batch(lambda order: order, key="order.id", name="b"), mixed)).count("done") == 10
    assert proxy.actions == ["BatchExecuteStatement", "BatchGetItem", "BatchExecuteStatement"]


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize(
    "fault",
    [
        Fault(lose_request=True),
        Fault(lose_reply=True),
        Fault(reset_reply=True),
        Fault(twice=True),
        Refuse("ThrottlingException"),
        Refuse("InternalServerError", 500),
    ],
    ids=str,
)
def test_any_fault_at_any_request_runs_each_once(run, url, proxy, number, fault):
    ran = []

    def handle(order):
        ran.append(order["id"])
        if order["id"] == "k3" and ran.count("k3") == 1:
            raise ValueError("the first time")
        return order["id"]

    once = Once(url, lease=20)
    batch = once.batch(handle, key="order.id", name="b")
    proxy.rule = lambda seen: fault if seen.number == number else None
    first = run(batch, orders(7))
    assert statuses(first) == ["done"] * 3 + ["failed"] + ["done"] * 3
    again = run(batch, orders(7))
    assert statuses(again) == ["replayed"] * 3 + ["done"] + ["replayed"] * 3
    assert sorted(ran) == sorted([*(f"k{n}" for n in range(7)), "k3"])
    assert [outcome.value for outcome in again] == [f"k{n}" for n in range(7)]


def test_without_the_right_to_batches_single_writes_are_made(run, url, proxy):
    proxy.rule = lambda seen: Refuse("AccessDeniedException") if seen.action == "BatchExecuteStatement" else None
    once = Once(url)
    with pytest.warns(UserWarning, match="PartiQL"):
        assert statuses(run(once.batch(lambda order: 1, key="order.id", name="b"), orders(10))) == ["done"] * 10


def test_one_that_the_table_refuses_harms_no_other(run, url, proxy):
    def rule(seen):
        if seen.action == "BatchExecuteStatement":
            return Refuse("AccessDeniedException")
        if seen.action == "PutItem" and seen.body["Item"]["key"]["S"] == "b:k2":
            return Refuse("ValidationException")
        return None

    proxy.rule = rule
    once = Once(url)
    with pytest.warns(UserWarning, match="PartiQL"):
        outcomes = run(once.batch(lambda order: 1, key="order.id", name="b"), orders(5))
    assert statuses(outcomes) == ["done", "done", "failed", "done", "done"]
    assert isinstance(outcomes[2].error, StoreError)


def test_what_is_deferred_is_given_back_with_one_request(run, url, proxy):
    def handle(order):
        if order["id"] == "k1":
            raise ValueError

    once = Once(url)
    outcomes = run(once.batch(handle, key="order.id", name="b", group=lambda order: 0), orders(6))
    assert statuses(outcomes) == ["done", "failed", *["deferred"] * 4]
    assert proxy.actions == ["GetItem"] + ["BatchExecuteStatement"] * 3
    records = {record.key: record for record, _ in once.ledger.records()}
    assert {records[f"b:k{n}"].status for n in (2, 3, 4, 5)} == {RELEASED}
    assert {records[f"b:k{n}"].attempts for n in (2, 3, 4, 5)} == {0}
    assert records["b:k0"].status == COMPLETED


def test_leases_are_sized_to_the_deadline(run, url, proxy):
    seen = {}

    def handle(order):
        record, now = once.ledger.show(f"b:{order['id']}")
        seen[order["id"]] = record.lease_until - now

    once = Once(url)
    batch = once.batch(handle, key="order.id", name="b")
    run(batch, orders(1), time_left=12)
    run(batch, [{"id": "k9"}], time_left=600)
    assert 11 < seen["k0"] < 15.5
    assert 58 < seen["k9"] < 62.5
