"""What pipelines send through the outbox goes to the address of its target, once by its derived key."""

import json
import uuid

import pytest

from commands import pipeline_runs
from onceward.outbox import sender, targets
from onceward.pipelines import load
from queues.recorded_target import RecordedTarget

SINKS = {  # each kind, and the address of its messages in the outbox
    "sqs: {queue: orders": "sqs:orders",
    "sqs: {queue: orders.fifo, region: eu-west-1, group: message.shop": "sqs:orders.fifo?region=eu-west-1",
    "sns: {topic: 'arn:aws:sns:eu-west-1:123456789012:paid'": "sns:arn:aws:sns:eu-west-1:123456789012:paid",
    "eventbridge: {bus: b, source: shop & more, detail_type: Paid=now": (
        "eventbridge:b?source=shop%20%26%20more&detail-type=Paid%3Dnow"
    ),
    "kinesis: {stream: s, group: message.shop": "kinesis:s",
    "firehose: {stream: s": "firehose:s",
    "kafka: {topic: t, servers: 'a:1,b:2', group: message.shop": "kafka://a:1,b:2/t",
    "rabbitmq: {queue: q": "amqp:?queue=q",
    "rabbitmq: {exchange: e, routing_key: 'a b', server: 'h:1/v', tls: true": "amqps://h:1/v?exchange=e&key=a%20b",
    "nats: {subject: a.in, servers: 'h:1'": "nats://h:1/a.in",
    "redis_stream: {stream: 's t', server: 'h:1', database: 3, tls: true": "rediss-stream://h:1/3/s%20t",
    "http: {url: 'http://h/hook'": "http://h/hook",
}


@pytest.fixture
def send(tmp_path, aws, monkeypatch):
    """Run a file with a sink twice, and return what came to its target, whose address its own target has taken."""

    def send(sink, address, messages, more=""):
        parts = (
            f"sinks:\n  - {sink}, message: message.body, headers: {{x-id: message.id, x-no: message.none}}}}\n{more}"
        )
        file = pipeline_runs.written(tmp_path, f"sqlite:///{tmp_path}/ledger.db", parts, messages)
        load(file)
        target = RecordedTarget()
        monkeypatch.setitem(targets._opened, address, target)
        for status in ("done", "replayed"):
            assert {one.status for one in pipeline_runs.run(file)} == {status}
            assert sender.SENDER.drain(60) == 0
        return target.sent

    monkeypatch.setenv("AMQP_URL", "amqp://localhost")
    return send


@pytest.mark.parametrize(("sink", "address"), SINKS.items())
def test_a_message_goes_to_its_address_with_its_derived_key(send, sink, address):
    messages = [{"id": n, "shop": "ab"[n % 2], "body": {"n": n, "é": [None]}} for n in range(8)]
    sent = send(sink, address, messages)
    assert sorted(json.loads(one.body)["n"] for one in sent) == list(range(8))
    for one in sent:
        body = json.loads(one.body)
        assert body["é"] == [None]
        assert (one.headers["x-id"], "x-no" in one.headers) == (str(body["n"]), False)
        assert one.group == ("ab"[body["n"] % 2] if "group" in sink else None)
    assert len({uuid.UUID(one.key) for one in sent}) == 8


def test_a_guard_around_one_sink_lets_a_payload_through_once(send):
    messages = [{"id": n, "body": {"order": n % 3}} for n in range(9)]
    guard = "    name: shipped\n    guard: {key: message.body.order, on_busy: 60s}\n  - stdout:\n"
    sent = send("sqs: {queue: orders", "sqs:orders", messages, guard)
    assert sorted(json.loads(one.body)["order"] for one in sent) == [0, 1, 2]
