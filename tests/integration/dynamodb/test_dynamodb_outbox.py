"""Messages that leave with a completion in DynamoDB."""

import random
import time

import pytest

import onceward
from onceward import EffectRefused, Once
from onceward.outbox import drain
from queues.boxes import Box


@pytest.fixture
def box():
    return Box(batch=10)


@pytest.fixture
def once(url):
    made = Once(url)
    yield made
    made.close()


@pytest.fixture
def money(dynoxide):
    return dynoxide.table(f"money-{time.time_ns()}", {"id": "S"})


def put(money, condition="attribute_not_exists(id)"):
    return {"Put": {"TableName": money, "Item": {"id": {"S": "alice"}}, "ConditionExpression": condition}}


def large():
    return random.Random(1).randbytes(320_000).hex()


def unsent(once):
    return [record.unsent for record, _ in once.ledger.records()]


def test_messages_of_a_batch_leave_together(once, box):
    batch = once.batch(lambda n: onceward.current().send(box.address, n), key="n", name="b")
    assert {outcome.status for outcome in batch.run(list(range(30)))} == {"done"}
    assert drain(10) == 0
    assert sorted(map(int, box.bodies)) == list(range(30))
    assert unsent(once) == [None] * 30


def test_messages_leave_with_writes_of_the_handler(once, box, money, dynoxide):
    def place():
        claim = onceward.current()
        claim.send(box.address, 1)
        return claim.transact([put(money)], "placed")

    assert once.run("k", place) == "placed"
    assert drain(10) == 0
    assert (box.bodies, unsent(once), len(dynoxide.items(money))) == (["1"], [None], 1)


def test_writes_that_are_refused_send_nothing_until_the_completion(once, box, money):
    def place():
        claim = onceward.current()
        claim.send(box.address, 1)
        with pytest.raises(EffectRefused):
            claim.transact([put(money, "attribute_exists(id)")])
        assert box.bodies == []
        claim.send(box.address, 2)

    once.run("k", place)
    assert drain(10) == 0
    assert (box.bodies, unsent(once)) == (["1", "2"], [None])


def test_a_result_that_is_too_large_harms_no_message(url, box):
    once = Once(url, max_result=10**6)

    def place():
        onceward.current().send(box.address, "x" * 60_000)
        return large()  # which just fits, without the message

    with pytest.warns(onceward.ResultWarning):
        once.run("k", place)
    assert drain(10) == 0
    assert (len(box.bodies), unsent(once)) == (1, [None])
    ((record, _),) = once.ledger.records()
    assert record.result is None
    assert once.run("bare", large) == large()


def test_striking_out_keeps_a_result_in_pieces_of_its_own(once, box):
    def place():
        onceward.current().send(box.address, 1)
        return "large " * 20_000

    made = once.run("k", place)
    assert drain(10) == 0
    assert unsent(once) == [None]
    assert once.run("k", place) == made
    assert box.bodies == ["1"]
