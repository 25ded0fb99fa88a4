"""Messages that are sent once: on real queues, through faults of queue and ledger, by processes that are killed."""

import asyncio
import json
from datetime import UTC, datetime

import pytest

from faults.injected import Faults, fail_before, settling, when
from onceward import KeyMissing, Once, ResultNotRecorded
from onceward.aws import send as send_once
from onceward.aws import send_async as send_once_async
from onceward.core.record import COMPLETED, RELEASED
from onceward.keys.ledger_keys import ledger_key
from onceward.outbox import MessageNotSent
from onceward.stores.memory import MemoryStore
from servers.needs import numbers
from servers.proxy import Fault
from tables import each

pytestmark = pytest.mark.sampled(target=1, send=1)

NAMES = numbers()


class Target:
    """A queue, and what a send to it needs."""

    def __init__(self, kind, ministack, front):
        self.fifo = kind == "fifo"
        self.name = f"send-{next(NAMES)}{'.fifo' if self.fifo else ''}"
        self.url = ministack.queue(self.name)
        self.group = {"group": "g"} if self.fifo else {}
        self.front = front
        self._ministack = ministack

    @property
    def messages(self):
        return self._ministack.messages(self.url)


@pytest.fixture
def targets(ministack, front):
    return {kind: Target(kind, ministack, front) for kind in ("standard", "fifo")}


@pytest.fixture(params=["standard", "fifo"])
def target(request, targets):
    return targets[request.param]


@pytest.fixture
def standard(targets):
    return targets["standard"]


@pytest.fixture
def once():
    return Once("memory:")


@pytest.fixture(params=["send", "send_async"])
def send(request, once):
    def call(queue, message, once=once, **options):
        if request.param == "send":
            return send_once(once, queue, message, **options)
        return asyncio.run(send_once_async(once, queue, message, **options))

    return call


def records(once):
    return {record.key: record for record, _ in once.ledger.records()}


def status(once):
    (record,) = records(once).values()
    return record.status


def once_key(message):
    return message["MessageAttributes"]["onceward-key"]["StringValue"]


def test_a_message_is_sent_once_for_its_key_and_duplicates_get_that_key(send, once, target):
    first = send(target.url, "hello", key="order-42", **target.group)
    assert [send(target.url, text, key="order-42", **target.group) for text in ("hello", "other")] == [first, first]
    (message,) = target.messages
    assert (once_key(message), message["Body"]) == (first, "hello")
    (record,) = records(once).values()
    assert record.key == ledger_key("send", (f"sqs:{target.url}", "order-42"))
    assert (record.status, json.loads(record.result)) == (COMPLETED, first)


def test_a_fifo_queue_drops_what_a_ledger_that_forgot_sends_again(targets):
    for _ in range(2):
        send_once(Once("memory:"), targets["fifo"].url, "hello", key=1, group="customer-7")
    (message,) = targets["fifo"].messages
    assert message["Attributes"]["MessageGroupId"] == "customer-7"
    assert message["Attributes"]["MessageDeduplicationId"] == once_key(message)


def test_what_is_no_text_is_sent_as_json(once, standard):
    messages = [{"id": 1, "at": datetime(2026, 1, 1, tzinfo=UTC)}, [1, None], 7, "text", '"text"']
    for number, message in enumerate(messages):
        send_once(once, standard.url, message, key=number, headers={"own": "12"})
    sent = {message["Body"] for message in standard.messages}
    assert sent == {'{"id":1,"at":"2026-01-01T00:00:00Z"}', "[1,null]", "7", "text", '"text"'}
    assert {message["MessageAttributes"]["own"]["StringValue"] for message in standard.messages} == {"12"}


def test_a_send_whose_answer_is_lost_is_sent_again_with_the_same_key(send, once, target):
    target.front.rule = lambda seen: Fault(lose_reply=True) if seen.action == "SendMessageBatch" else None
    with pytest.raises(MessageNotSent):
        send(target.url, "hello", key=1, **target.group)
    assert status(once) == RELEASED
    target.front.clear()
    send(target.url, "hello", key=1, **target.group)
    messages = target.messages
    assert len({once_key(message) for message in messages}) == 1
    assert len(messages) == (1 if target.fifo else 2)


def test_what_was_sent_but_not_recorded_says_so_with_the_id(send, target):
    once = Once(Faults(MemoryStore(), when(settling, fail_before())))
    with pytest.raises(ResultNotRecorded) as caught:
        send(target.url, "hello", once=once, key=1, lease=0.4, heartbeat=0, **target.group)
    assert caught.value.result == once_key(target.messages[0])


@each(
    ("queue", "message", "options", "error"),
    [
        ("orders", "a\x00b", {}, "U\\+0000"),
        ("orders", b"bytes", {}, "base64"),
        ("orders", "a", {"key": None}, "missing"),
        ("orders", "a", {"headers": {"onceward-key": "mine"}}, "onceward-key"),
        ("orders", "a", {"headers": {f"a{n}": "x" for n in range(10)}}, "SQS takes 10"),
        ("orders", "a", {"delay": 901}, "delay=901"),
        ("orders", "a", {"on_busy": "skip"}, "on_busy"),
        ("orders.fifo", "a", {}, "group="),
        ("orders.fifo", "a", {"group": "g", "delay": 1}, "delay="),
    ],
)
def test_what_cannot_be_sent_is_refused_before_anything_is_claimed(send, once, queue, message, options, error):
    with pytest.raises((ValueError, TypeError, KeyMissing), match=error):
        send(queue, message, **{"key": 1, **options})
    assert records(once) == {}
