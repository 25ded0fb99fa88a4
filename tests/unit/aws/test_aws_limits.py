"""What no queue, topic, bus or stream of AWS takes, told before any request; and how a worker of SQS paces itself, without a queue."""

import asyncio
import json

import pytest

from onceward import Once
from onceward.aws import SqsWorker
from onceward.aws.sqs.address import Address, address_of
from onceward.aws.sqs.message import Message
from onceward.aws.sqs.queue import Outgoing, Queue
from onceward.aws.sqs.visibility import Visibility
from onceward.consumers.delivery import Backoff
from onceward.consumers.polling import Broker, Polls
from onceward.outbox import MessageRefused, OutboxMessage
from onceward.outbox.targets import open_target
from onceward.testing.clock import ManualClock
from tables import each
from waiting import PATIENCE

OWN = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
VPCE = "https://vpce-0a-1b.sqs.us-east-1.vpce.amazonaws.com"
NOBODY = "http://127.0.0.1:1"  # listens there


@each(
    ("queue", "address"),
    [
        ("orders", Address("orders")),
        ("orders.fifo", Address("orders.fifo")),
        ("arn:aws:sqs:eu-west-1:123456789012:orders", Address("orders", None, "123456789012", "eu-west-1")),
        (OWN, Address("orders", OWN, None, "eu-west-1")),
        (u := f"{VPCE}/1/a", Address("a", u, None, "us-east-1", VPCE)),
        (u := "http://localhost:4566/000000000000/a", Address("a", u, None, None, "http://localhost:4566")),
    ],
)
def test_what_a_queues_name_tells(queue, address):
    assert address_of(queue) == address
    where = address.region or "eu-west-1"
    assert address_of(queue, where) == address._replace(region=where)


@each("queue", ["", "a b", "orders.fif", "https://host/", "ftp://host/1/a", "arn:aws:sns:eu-west-1:1:a"])
def test_what_is_no_queue_is_told_when_it_is_opened(queue):
    with pytest.raises(ValueError, match="is not a queue: give its URL, its ARN, or its name"):
        Queue(queue)


def test_options_that_cannot_be_are_told_when_it_is_opened(aws):
    with pytest.raises(ValueError, match="is in eu-west-1, and region='us-east-1'"):
        Queue(OWN, region="us-east-1")
    with pytest.raises(ValueError, match="give an endpoint as"):
        Queue(OWN, endpoint="localhost:4566")
    with pytest.raises(ValueError, match="timeout=0"):
        Queue(OWN, timeout=0)


@each(
    ("body", "attributes", "says"),
    [
        ("a\x00", None, r"the body of the message holds U\+0000 at 1.*JSON"),
        ("a", {"b": "\x1b"}, r"the attribute b of the message holds U\+001B"),
    ],
)
def test_what_a_queue_cannot_hold_is_told_before_anything_is_sent(aws, body, attributes, says):
    queue = Queue(OWN, endpoint=NOBODY)
    with pytest.raises(ValueError, match=says):
        queue.send(Outgoing(body, attributes))


ADDRESSES = {
    "sqs": "sqs:orders",
    "sns": "sns:arn:aws:sns:eu-west-1:000000000000:orders",
    "eventbridge": "eventbridge:orders?source=shop&detail-type=Paid",
    "kinesis": "kinesis:orders",
    "firehose": "firehose:orders",
}


@each(
    ("kind", "fifo", "wrong", "says"),
    [
        ("sqs", False, {"body": "a\x00b"}, "U\\+0000"),
        ("sqs", False, {"body": "a" * 1_048_577}, "SQS takes 1048576"),
        ("sqs", False, {"delay": 901}, "delay=901"),
        ("sqs", False, {"headers": {f"h{n}": "x" for n in range(10)}}, "SQS takes 10"),
        ("sqs", False, {"headers": {"onceward-key": "mine"}}, "onceward itself"),
        ("sqs", True, {"group": None}, "give group="),
        ("sns", False, {"body": "a" * 1_048_577}, "SNS takes 1048576"),
        ("sns", False, {"headers": {f"h{n}": "x" for n in range(10)}}, "SNS takes 10"),
        ("sns", True, {"group": None}, "give group="),
        ("eventbridge", False, {"body": "text"}, "is a JSON object"),
        ("eventbridge", False, {"body": '{"onceward": 1}'}, "a member 'onceward'"),
        ("eventbridge", False, {"body": json.dumps({"a": "a" * 262_144})}, "EventBridge takes 262144"),
        ("kinesis", False, {"body": "text"}, "to Kinesis is a JSON object"),
        ("firehose", False, {"body": json.dumps({"a": "a" * 1_024_000})}, "Firehose takes 1024000"),
    ],
)
def test_what_can_never_be_taken_is_refused_without_a_request(aws, monkeypatch, kind, fifo, wrong, says):
    monkeypatch.setenv("AWS_ENDPOINT_URL", NOBODY)
    target = open_target(ADDRESSES[kind] + (".fifo" if fifo else ""))
    bad = OutboxMessage("k", **({"body": '{"a": 1}'} | ({"group": "g"} if fifo else {}) | wrong))
    with pytest.raises(ValueError, match=says):
        target.check(bad)
    assert [type(one) for one in target.send([bad])] == [MessageRefused]
    target.close()


@each(
    "address",
    [
        "sqs:a b",
        "sqs:orders?wait=1",
        "sqs:arn:aws:sqs:eu-west-1:000000000000:orders?region=eu-west-2",
        "eventbridge:orders?source=aws.shop&detail-type=Paid",
        "kinesis:arn:aws:kinesis:eu-west-1:000000000000:stream/a?region=eu-west-1",
        "firehose:arn:aws:firehose:eu-west-1:000000000000:deliverystream/a",
    ],
)
def test_an_address_that_is_not_valid_is_refused(address, aws):
    with pytest.raises(ValueError, match=r"queue|topic|bus|stream|after the|region=|source"):
        open_target(address)


def test_pauses_double_up_to_the_longest_and_are_never_less_than_half():
    backoff = Backoff(2.0, 900.0)
    for receives, most in ((1, 2), (2, 4), (5, 32), (9, 512), (10, 900), (5000, 900)):
        pauses = [backoff.seconds(receives) for _ in range(200)]
        assert most / 2 <= min(pauses) < max(pauses) <= most


class RecordedQueue:
    """Takes the place of a queue where 12 hours must pass."""

    name = "recorded"

    def __init__(self, clock):
        self.clock, self.ends = clock, []

    def change_many(self, holds):
        self.ends += [self.clock() + span for _, span in holds]
        return [None] * len(holds)


def test_a_message_is_held_for_twelve_hours_and_no_longer(caplog):
    clock = ManualClock(0.0)
    queue = RecordedQueue(clock)
    visibility = Visibility(queue, 600, clock)
    visibility.hold([Message("m-1", "r-1", "", {}, {})])
    while clock() < 50_000:
        visibility._extend(visibility._due())
        clock.advance(60)

    assert 43_190 < max(queue.ends) <= 43_200, "SQS refuses more"
    assert caplog.text.count("was held for 12 hours") == 1
    visibility.give_back("r-1", 5)
    assert not visibility._back, "it is no longer ours"


async def test_polls_that_wait_for_room_go_on_when_other_polls_bring_nothing():
    """Six polls are under way and two come back full; then handlers become slow, so that there is room for one poll only."""
    took, under_way = 0.01, []

    async def receive(count):
        told = asyncio.get_running_loop().create_future()
        under_way.append(told)
        return [Message("m", "r", "", {}, {})] * (count if await told else 0)

    async def asked(count):
        async with asyncio.timeout(PATIENCE):
            while len(under_way) < count:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # what else there is to be asked is asked now

    polls = Polls(Broker, receive, lambda _: None, concurrency=10, typical=lambda: took, until_empty=False)
    running = asyncio.create_task(polls.run())
    for count in range(1, 7):  # after each that comes back full there is another one
        await asked(count)
        if count < 6:
            under_way.pop().set_result(True)
            await asked(count)
            for _ in range(10):
                polls.done()
    assert len(under_way) == 6
    for _ in range(2):
        under_way.pop(0).set_result(True)
    await asked(4)
    took = 10.0
    for _ in range(20):
        polls.done()
    await asked(4)
    assert len(under_way) == 4, "there is no room for more than these may bring"
    while under_way:
        under_way.pop().set_result(False)
    await asked(1)
    polls.stop()
    while not running.done():
        while under_way:
            under_way.pop().set_result(False)
        await asyncio.sleep(0.01)
    await running


def test_arguments_that_do_not_fit_are_told_when_the_worker_is_made(aws):
    for name, value in {"visibility": 0, "grace": -1, "concurrency": 0, "unwrap": "s3"}.items():
        with pytest.raises(ValueError, match=f"{name}={value!r}"):
            SqsWorker(Once("memory:"), "orders", print, **{name: value})
