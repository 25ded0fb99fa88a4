"""The worker of a queue, against a real one: what it handles, deletes and gives back, and how it stops."""

import asyncio
import itertools
import json
import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass
from operator import itemgetter

import pytest

from faults.injected import Faults, delay
from observing import note_outcomes
from onceward import Claim, Once
from onceward.aws import Delivery, SqsWorker, on_sqs
from onceward.aws.sqs.queue import QueueError
from onceward.stores.memory import MemoryStore
from servers.proxy import Refuse
from waiting import PATIENCE, until
from waiting import working as at_work


@pytest.fixture
def once():
    return Once("memory:")


def numbered(count):
    return [{"id": number} for number in range(count)]


def drain(once, queue, handler, **options):
    """Work until the queue is empty; return the outcomes."""
    outcomes = []
    note_outcomes(outcomes.append)
    options = {"key": itemgetter("id"), "name": "test", "wait": 1, **options}
    SqsWorker(once, queue, handler, **options).run(until_empty=True)
    return outcomes


def working(once, queue, handler, **options):
    """A worker in a thread, stopped at the end."""
    return at_work(SqsWorker(once, queue, handler, **{"key": itemgetter("id"), "name": "test", "wait": 1, **options}))


def bodies(front, action):
    return [seen.body for seen in front.seen if seen.action == action]


def changes(front):
    """The times that messages were made invisible for, in order."""
    asked = bodies(front, "ChangeMessageVisibilityBatch")
    return [entry["VisibilityTimeout"] for body in asked for entry in body["Entries"]]


def test_each_message_is_handled_once_and_costs_a_tenth_of_a_request_of_each_kind(once, made, front, ministack):
    queue, ran = made(*numbered(200)), []

    async def handler(order):
        await asyncio.sleep(0.002)
        ran.append(order["id"])

    outcomes = drain(once, queue, handler)
    assert sorted(ran) == list(range(200))
    assert Counter(outcome.status for outcome in outcomes) == {"done": 200}
    asked = Counter(front.actions)
    assert asked["DeleteMessageBatch"] <= 24
    assert asked["ReceiveMessage"] <= 32  # some more ask an empty queue
    assert "ChangeMessageVisibilityBatch" not in asked
    assert ministack.left(queue) == 0


@dataclass
class Order:
    id: str
    amount: int


def test_a_handler_is_given_what_lambda_would_give_it_and_shares_its_keys(once, made, ministack):
    queue = made()
    attributes = {
        "trace": {"DataType": "String", "StringValue": "t-1"},
        "raw": {"DataType": "Binary", "BinaryValue": "AAE="},
    }
    body = json.dumps({"id": "o-1", "amount": 7})
    ministack.ask("AmazonSQS.SendMessage", QueueUrl=queue, MessageBody=body, MessageAttributes=attributes)
    seen = []

    def charge(order: Order, delivery: Delivery, claim: Claim) -> int:
        seen.append((order, delivery, claim.attempt))
        return order.amount

    drain(once, queue, charge, name=None, key=None)
    ((order, delivery, attempt),) = seen
    assert (order, attempt) == (Order("o-1", 7), 1)
    raw = delivery.raw
    assert (raw["eventSource"], raw["eventSourceARN"]) == ("aws:sqs", ministack.queue_arn(queue))
    assert (raw["body"], raw["attributes"]["ApproximateReceiveCount"]) == (body, "1")
    text = {"stringValue": "t-1", "stringListValues": [], "binaryListValues": [], "dataType": "String"}
    assert raw["messageAttributes"]["trace"] == text
    assert raw["messageAttributes"]["raw"]["binaryValue"] == "AAE="
    on_lambda = on_sqs(once)(charge)
    assert on_lambda({"Records": [raw]}) == {"batchItemFailures": []}
    assert len(seen) == 1, "the function on Lambda finds it done under the same key"


def test_a_message_whose_delete_was_lost_replays_and_is_deleted(once, made, front, ministack):
    queue, ran = made({"id": 1}), []
    refusals = itertools.count()
    front.rule = lambda seen: (
        Refuse("AccessDenied") if seen.action == "DeleteMessageBatch" and not next(refusals) else None
    )
    told = []
    note_outcomes(lambda o: told.append(o.status))
    with working(once, queue, ran.append, visibility=1):
        until(lambda: ministack.left(queue) == 0)
    assert ran == [{"id": 1}]
    assert told == ["done", "replayed"]


@pytest.mark.parametrize(("lease", "least", "most"), [(40, 30, 40), (50 * 3600, 11 * 3600, 12 * 3600)])
def test_a_busy_message_comes_again_when_the_lease_ends_or_as_late_as_sqs_allows(
    once, made, front, caplog, lease, least, most
):
    queue, ran = made({"id": 1}), []
    caplog.set_level(logging.INFO)
    held = once.acquire(1, name="test", lease=lease)
    (outcome,) = drain(once, queue, ran.append)
    assert outcome.status == "busy"
    assert not ran
    (away,) = changes(front)
    assert least <= away <= most
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    held.release()


def test_a_fifo_queue_keeps_the_order_of_each_group_when_messages_fail(once, made, ministack):
    sent = [{"id": number, "group": "abc"[number % 3]} for number in range(30)]
    queue = made(*sent, fifo=True)
    done, failed = [], set()

    async def handler(order):
        await asyncio.sleep(0.01)
        if order["id"] % 5 == 0 and order["id"] not in failed:
            failed.add(order["id"])
            raise OSError("once")
        done.append(order)

    told = []
    note_outcomes(told.append)
    with working(once, queue, handler, backoff=(0, 0)):
        until(lambda: ministack.left(queue) == 0)
    for group in "abc":
        assert [order for order in done if order["group"] == group] == [
            order for order in sent if order["group"] == group
        ]
    assert len(failed) == 6
    assert "deferred" in {outcome.status for outcome in told}


def test_messages_stay_invisible_while_a_handler_blocks_the_event_loop(once, made, front, ministack):
    queue, receives = made(*numbered(3)), []

    async def handler(order, delivery: Delivery):
        receives.append(delivery.raw["attributes"]["ApproximateReceiveCount"])
        time.sleep(3)

    with working(once, queue, handler, visibility=2, concurrency=3):
        until(lambda: receives)
        while ministack.left(queue):
            assert not ministack.ask("AmazonSQS.ReceiveMessage", QueueUrl=queue, WaitTimeSeconds=0).get("Messages")
            time.sleep(0.05)
    assert receives == ["1", "1", "1"]
    assert set(changes(front)) == {2}


def test_a_stop_while_messages_are_being_claimed_begins_none_of_them(made, ministack):
    claiming = threading.Event()

    def slowly(ask):
        if ask.writes and not claiming.is_set():
            claiming.set()
            return delay(0.5)
        return None

    once = Once(Faults(MemoryStore(), slowly))
    queue, ran = made(*numbered(5)), []
    with working(once, queue, ran.append, visibility=60) as worker:
        assert claiming.wait(PATIENCE)
        worker.stop()
    assert not ran
    assert len(ministack.messages(queue)) == 5
    assert once.ledger.stats()["RELEASED"] == 5


def test_a_queue_that_is_deleted_ends_the_worker_and_is_told_before_anything(once, made, ministack):
    queue = made()
    threading.Timer(1.0, ministack.ask, ("AmazonSQS.DeleteQueue",), {"QueueUrl": queue}).start()
    with pytest.raises(QueueError) as raised:
        SqsWorker(once, queue, print, wait=1).run()
    assert raised.value.code == "QueueDoesNotExist"
    with pytest.raises(QueueError, match="there is no such queue"):
        SqsWorker(once, queue, print).run()


def test_while_the_ledger_is_away_nothing_runs_and_one_message_is_tried(made, front, proxy, url, ministack):
    queue, ran, told = made(), [], []
    away = threading.Event()
    proxy.rule = lambda seen: Refuse("InternalServerError", 500) if away.is_set() else None
    ledger = Once(url)

    def handler(order):
        ran.append(order["id"])

    note_outcomes(lambda o: told.append(o.status))
    with working(ledger, queue, handler, concurrency=5, backoff=(0, 1)):
        until(lambda: "ReceiveMessage" in front.actions)
        away.set()
        for order in numbered(30):
            ministack.send(queue, order)
        until(lambda: "failed" in told)
        time.sleep(0.5)  # polls that were on their way have arrived
        front.seen.clear()
        until(lambda: len(bodies(front, "ReceiveMessage")) >= 2)
        assert {body["MaxNumberOfMessages"] for body in bodies(front, "ReceiveMessage")} == {1}
        assert not ran
        away.clear()
        until(lambda: ministack.left(queue) == 0)
    assert sorted(ran) == list(range(30))
    ledger.close()


def test_a_queue_whose_messages_would_never_be_invisible_is_refused(once, made, front):
    with pytest.raises(ValueError, match="visibility timeout is 0"):
        SqsWorker(once, made({"id": 1}, VisibilityTimeout=0), print).run()
    assert "ReceiveMessage" not in front.actions


def test_the_command_drains_a_queue(made, cli, ministack, tmp_path):
    (tmp_path / "shop.py").write_text('def work(order):\n    print("working on", order["id"])\n')
    queue = made(*numbered(12))
    call = ("--call", "shop:work", "--key", "order.id", "--set", "wait=1", "--until-empty")
    told = cli.run("work", f"sqs:{queue}", *call)
    assert told.returncode == 0, told.stderr
    assert "done 12" in told.stderr
    assert b"working on 3" in told.stdout
    assert ministack.left(queue) == 0
