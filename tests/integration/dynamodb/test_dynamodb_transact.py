"""Effects in DynamoDB that commit together with the record, all or nothing; and batches: their requests, faults and leases."""

import asyncio
import json
import logging
import random
import threading
import time

import pytest

from fixtures import closing_fixture
from onceward import EffectRefused, Once, Parked, ResultNotRecorded, ResultWarning, StoreError, current
from onceward.core.record import COMPLETED, IN_PROGRESS
from onceward.outbox import drain
from onceward.stores.dynamodb import open_table
from onceward.testing.clock import ManualClock
from queues.batches import never, orders, statuses
from queues.boxes import Box
from servers.proxy import Fault, Refuse
from waiting import within

pytestmark = pytest.mark.sampled(run=1, number=2)


@pytest.fixture
def money(dynoxide):
    """A table of accounts."""
    return dynoxide.table(f"money-{time.time_ns()}", {"id": "S"})


once = closing_fixture(Once, "url")


@pytest.fixture
def balance(dynoxide, money):
    """Returns what is on the account."""

    def read():
        items = {item["id"]["S"]: item for item in dynoxide.items(money)}
        return int(items["alice"]["n"]["N"]) if "alice" in items else 0

    return read


def adding(money, amount=1, **more):
    return {
        "Update": {
            "TableName": money,
            "Key": {"id": {"S": "alice"}},
            "UpdateExpression": "ADD n :amount",
            "ExpressionAttributeValues": {":amount": {"N": str(amount)}},
            **more,
        }
    }


def opening(money):
    return {
        "Put": {
            "TableName": money,
            "Item": {"id": {"S": "alice"}, "n": {"N": "100"}},
            "ConditionExpression": "attribute_not_exists(id)",
        }
    }


def test_claim_effect_and_completion_are_one_request_and_are_replayed(once, money, balance, proxy):
    once.transact("warm", [])
    proxy.seen.clear()
    assert once.transact("k", [adding(money)], {"paid": 1}) == {"paid": 1}
    assert proxy.actions == ["TransactWriteItems"]
    assert once.transact("k", [adding(money)], {"paid": 2}) == {"paid": 1}
    assert proxy.actions == ["TransactWriteItems"] * 2
    assert balance() == 1


def test_a_condition_of_the_effect_that_does_not_hold_is_told_with_item(once, money, balance, dynoxide):
    once.transact("open", [opening(money)])
    with pytest.raises(EffectRefused, match=r"writes\[1\].*Put on money") as caught:
        once.transact("k", [adding(money, 5, Key={"id": {"S": "bob"}}), opening(money)])
    assert caught.value.index == 1
    assert caught.value.item == {"id": {"S": "alice"}, "n": {"N": "100"}}
    assert [item["id"]["S"] for item in dynoxide.items(money)] == ["alice"], "bob got nothing"
    assert once.transact("k", [adding(money, 5)], "later") == "later", "the key is free"
    assert balance() == 105


def test_a_lapsed_key_is_taken_over_and_one_without_attempts_is_parked(dynoxide, proxy, money, balance):
    clock = ManualClock()
    proxy.date = clock
    store = open_table(dynoxide.table(f"ledger-{time.time_ns()}"), endpoint=proxy.url, clock=clock)
    once = Once(store, clock=clock)
    once.acquire("k", lease=10)
    once.acquire("j", lease=10)
    clock.advance(15)
    assert once.transact("k", [adding(money)], 1, lease=10) == 1
    with pytest.raises(Parked):
        once.transact("j", [adding(money)], 1, lease=10, max_attempts=1)
    assert balance() == 1


def test_a_refused_effect_leaves_the_claim_to_the_handler(once, money, balance):
    once.transact("open", [opening(money)])
    claim = once.acquire("k")
    with pytest.raises(EffectRefused):
        claim.transact([opening(money)])
    assert claim.settled is None
    claim.complete("something else")

    def handler():
        return current().transact([opening(money)])

    with pytest.raises(EffectRefused):
        once.run("j", handler)
    assert balance() == 100


@pytest.mark.parametrize(
    ("writes", "kind", "says"),
    [
        ([{"Put": {"TableName": "t"}, "Delete": {"TableName": "t"}}], TypeError, "exactly one of"),
        ([{"Put": {}}], TypeError, "TableName"),
        ([{"Delete": {"TableName": "t", "Key": 5}}], TypeError, "typed values"),
        ([{"Put": 5}], TypeError, "give a dict"),
        ({"Put": {"TableName": "t"}}, TypeError, "give a list"),
        ([{"Put": {"TableName": "t", "Item": {}}}] * 100, ValueError, "at most 99"),
    ],
)
def test_writes_of_another_form_are_refused_before_anything_is_sent(once, proxy, writes, kind, says):
    with pytest.raises(kind, match=says):
        once.transact("k", writes)
    claim = once.acquire("c")
    sent = len(proxy.seen)
    with pytest.raises(kind, match=says):
        claim.transact(writes)
    assert len(proxy.seen) == sent


def test_ninety_nine_writes_commit_and_none_to_the_record_itself(once, money, dynoxide, proxy, table):
    writes = [{"Put": {"TableName": money, "Item": {"id": {"S": f"n{n}"}}}} for n in range(99)]
    once.transact("k", writes, 1)
    assert len(dynoxide.items(money)) == 99
    sent = len(proxy.seen)
    with pytest.raises(ValueError, match="this key's own record"):
        once.transact("k", [{"Delete": {"TableName": table, "Key": {"key": {"S": "claim:k"}}}}])
    assert len(proxy.seen) == sent


def test_a_conflict_on_the_record_is_not_taken_for_a_refused_effect(url, proxy, money, balance):
    once = Once(url)
    once.transact("warm", [])
    first = len(proxy.seen)

    def rule(seen):
        if seen.number == first:
            reasons = [{"Code": "TransactionConflict"}, {"Code": "ConditionalCheckFailed"}]
            return Refuse("TransactionCanceledException", more={"CancellationReasons": reasons})
        return None

    proxy.rule = rule
    assert once.transact("k", [adding(money)], 1) == 1
    assert balance() == 1


@pytest.fixture
def box():
    return Box(batch=10)


def large():
    return random.Random(1).randbytes(320_000).hex()


def unsent(once):
    return [record.unsent for record, _ in once.ledger.records()]


def test_messages_leave_with_writes_of_the_handler_and_not_with_refused_ones(once, box, money, balance):
    def place():
        claim = current()
        claim.send(box.address, 1)
        return claim.transact([opening(money)], "placed")

    assert once.run("k", place) == "placed"
    assert drain(10) == 0
    with pytest.raises(EffectRefused):
        once.run("refused", place)
    assert drain(10) == 0
    assert (box.bodies, set(unsent(once)), balance()) == (["1"], {None}, 100)


def test_a_result_that_is_too_large_harms_no_message(url, box):
    once = Once(url, max_result=10**6)

    def place():
        current().send(box.address, "x" * 60_000)
        return large()  # which just fits, without the message

    with pytest.warns(ResultWarning):
        once.run("k", place)
    assert drain(10) == 0
    assert (len(box.bodies), unsent(once)) == (1, [None])
    ((record, _),) = once.ledger.records()
    assert record.result is None
    assert once.run("bare", large) == large()


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL + 1, "onceward")


@pytest.fixture(params=["blocking", "awaiting"])
def run(request):
    if request.param == "blocking":
        return lambda batch, records, **options: batch.run(records, **options)
    return lambda batch, records, **options: asyncio.run(batch.run_async(records, **options))


KEYS = [f"k{number}" for number in range(10)]


def test_ten_records_take_two_requests_and_ten_duplicates_two(run, url, proxy):
    once = Once(url)
    assert statuses(run(once.batch(lambda order: order, key="order.id", name="b"), orders(*KEYS))) == ["done"] * 10
    first, *asked = proxy.actions
    assert first == "GetItem"  # which, once, tells the server's time
    assert set(asked) == {"BatchExecuteStatement"}
    assert len(asked) < 6, "a claim and an end; on a busy machine, what ends later has a request of its own"
    proxy.seen.clear()
    assert statuses(run(once.batch(never, key="order.id", name="b"), orders(*KEYS))) == ["replayed"] * 10
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
    outcomes = run(once.batch(lambda order: 1, key="order.id", name="b"), orders(*KEYS[:5]))
    assert statuses(outcomes) == ["done", "done", "failed", "done", "done"]
    assert isinstance(outcomes[2].error, StoreError)


def test_a_role_of_an_earlier_version_which_may_not_read_by_partiql_reads_each_record(run, url, proxy):
    once = Once(url)
    batch = once.batch(lambda order: 1, key="order.id", name="b")
    run(batch, orders(*KEYS[:3]))
    proxy.seen.clear()
    proxy.rule = lambda seen: Refuse("AccessDeniedException") if "SELECT" in json.dumps(seen.body) else None
    assert statuses(run(batch, orders(*KEYS[:3]))) == ["replayed"] * 3
    assert proxy.actions == ["BatchExecuteStatement", "BatchExecuteStatement", *["GetItem"] * 3]


THROTTLED = Refuse("ThrottlingException", 400, "Rate exceeded")


def throttling(key, when=lambda seen: True):
    """A rule that throttles whatever is asked for one key: its member of a batch, and its single writes."""

    def rule(seen):
        if f'"{key}"' not in json.dumps(seen.body) or not when(seen):
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
    outcomes = run(batch, orders(*KEYS))
    assert statuses(outcomes) == ["done"] * 4 + ["failed"] + ["done"] * 5
    assert isinstance(outcomes[4].error, StoreError)
    proxy.rule = lambda seen: None
    again = run(batch, orders(*KEYS))
    assert statuses(again) == ["replayed"] * 4 + ["done"] + ["replayed"] * 5


def test_one_key_whose_end_is_throttled_holds_up_no_others_end(run, url, proxy):
    once = Once(url, lease=3)
    batch = once.batch(lambda order: order["id"], key="order.id", name="b")
    proxy.rule = throttling("b:k4", lambda seen: COMPLETED in json.dumps(seen.body))
    outcomes = run(batch, orders(*KEYS))
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
