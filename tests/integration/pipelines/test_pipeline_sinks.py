"""What pipelines send through the outbox reaches each kind of target, once by its derived key."""

import asyncio
import json
import uuid

import nats as nats_client
import pytest

from commands import pipeline_runs
from onceward.outbox import sender
from servers.needs import numbers

NAMES = numbers()
AWS = ("sqs", "sqs.fifo", "sns", "eventbridge", "kinesis", "firehose")
KINDS = (*AWS, "kafka", "rabbitmq", "nats", "redis_stream")


class Stations:
    """One place of each kind, and what has come there: the key, the body and the header ``x-id``."""

    def __init__(self, request, kind):
        self._server = request.getfixturevalue(
            "ministack" if kind in AWS else "redis" if kind == "redis_stream" else kind
        )
        self._kind, self._name = kind.partition(".")[0], f"station-{next(NAMES)}-{uuid.uuid4().hex[:6]}"
        if kind == "sqs.fifo":
            self._name += ".fifo"
        if kind in AWS:
            monkeypatch = request.getfixturevalue("monkeypatch")
            request.getfixturevalue("aws")
            monkeypatch.setenv("AWS_ENDPOINT_URL", self._server.url)
        if kind == "rabbitmq":
            request.getfixturevalue("monkeypatch").setenv("AMQP_URL", self._server.url)
        self.sink = getattr(self, f"_{self._kind}")()

    def found(self):
        return getattr(self, f"_found_{self._kind}")()

    def _sqs(self):
        self._queue = self._server.queue(self._name)
        group = ", group: message.shop" if self._name.endswith(".fifo") else ""
        return f"sqs: {{queue: '{self._queue}'{group}"

    def _sns(self):
        self._queue, topic = self._server.queue(self._name), self._server.topic(self._name)
        self._server.subscribe(topic, self._queue, raw=True)
        return f"sns: {{topic: '{topic}'"

    def _eventbridge(self):
        self._queue = self._server.queue(self._name)
        self._server.bus(self._name, self._queue)
        return f"eventbridge: {{bus: {self._name}, source: shop & more, detail_type: Paid=now"

    def _kinesis(self):
        self._stream = self._server.stream(self._name)
        return f"kinesis: {{stream: {self._name}, group: message.shop"

    def _firehose(self):
        self._server.delivery_stream(self._name, self._server.bucket(self._name))
        return f"firehose: {{stream: {self._name}"

    def _kafka(self):
        self._server.make(self._name)
        return f"kafka: {{topic: {self._name}, servers: '{self._server.servers}', group: message.shop"

    def _rabbitmq(self):
        self._server.queue(self._name)
        return f"rabbitmq: {{queue: {self._name}"

    def _nats(self):
        self._ask(lambda jetstream: jetstream.add_stream(name=self._name, subjects=[f"{self._name}.in"]))
        return f"nats: {{subject: {self._name}.in, servers: '{self._server.url.removeprefix('nats://')}'"

    def _redis_stream(self):
        return f"redis_stream: {{stream: {self._name}, server: '127.0.0.1:{self._server.port}'"

    # --- what has come ------------------------------------------------------------------------------------------------

    def _found_sqs(self):
        found = []
        for one in self._server.messages(self._queue):
            texts = {name: value["StringValue"] for name, value in one["MessageAttributes"].items()}
            found.append((texts["onceward-key"], json.loads(one["Body"]), texts["x-id"]))
        return found

    _found_sns = _found_sqs

    def _found_eventbridge(self):
        return [_opened(json.loads(one["Body"])["detail"]) for one in self._server.messages(self._queue)]

    def _found_kinesis(self):
        records = self._server.records(self._stream)
        assert {one["PartitionKey"] for one in records} <= {"a", "b"}
        return [_opened(json.loads(one["Data"])) for one in records]

    def _found_firehose(self):
        return [_opened(json.loads(content)) for content in self._server.objects(self._name).values()]

    def _found_kafka(self):
        found = []
        for one in self._server.read(self._name):
            headers = {name: value.decode() for name, value in one.headers}
            assert one.key in {b"a", b"b"}
            found.append((headers["Idempotency-Key"], json.loads(one.value), headers["x-id"]))
        return found

    def _found_rabbitmq(self):
        self._taken = [*getattr(self, "_taken", []), *self._server.take(self._name)]
        return [(one.headers["Idempotency-Key"], json.loads(one.body), one.headers["x-id"]) for one in self._taken]

    def _found_nats(self):
        async def stored(jetstream):
            info = await jetstream.stream_info(self._name)
            return [await jetstream.get_msg(self._name, n) for n in range(1, info.state.messages + 1)]

        return [
            (one.headers["Idempotency-Key"], json.loads(one.data), one.headers["x-id"]) for one in self._ask(stored)
        ]

    def _found_redis_stream(self):
        with self._server.client() as client:
            entries = [json.loads(fields["__data__"]) for _, fields in client.xrange(self._name)]
        return [(one["headers"]["Idempotency-Key"], json.loads(one["data"]), one["headers"]["x-id"]) for one in entries]

    def _ask(self, work):
        async def connected():
            connection = await nats_client.connect(self._server.url)
            try:
                return await work(connection.jetstream())
            finally:
                await connection.close()

        return asyncio.run(connected())


def _opened(record):
    headers = record.pop("onceward")
    return headers["onceward-key"], record, headers["x-id"]


@pytest.fixture
def station(request, kind):
    return Stations(request, kind)


def pipeline(folder, station, messages, more=""):
    sink = f"sinks:\n  - {station.sink}, message: message.body, headers: {{x-id: message.id, x-no: message.none}}}}\n{more}"
    return pipeline_runs.written(folder, f"sqlite:///{folder}/ledger.db", sink, messages)


MESSAGES = [{"id": n, "shop": "ab"[n % 2], "body": {"n": n, "é": [None]}} for n in range(8)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_arrives_with_its_derived_key(station, tmp_path):
    file = pipeline(tmp_path, station, MESSAGES)
    for status in ("done", "replayed"):
        assert {one.status for one in pipeline_runs.run(file)} == {status}
        assert sender.SENDER.drain(60) == 0
    found = station.found()
    assert sorted(body["n"] for _, body, _ in found) == list(range(8))
    assert all(body["é"] == [None] and str(body["n"]) == number for _, body, number in found)
    assert len({uuid.UUID(key) for key, _, _ in found}) == 8


@pytest.mark.parametrize("kind", ["sqs"])
def test_a_guard_around_one_sink_lets_a_payload_through_once(station, tmp_path):
    messages = [{"id": n, "body": {"order": n % 3}} for n in range(9)]
    guard = "    name: shipped\n    guard: {key: message.body.order, on_busy: 60s}\n  - stdout:\n"
    file = pipeline(tmp_path, station, messages, guard)
    outcomes = pipeline_runs.run(file)
    assert {one.status for one in outcomes} == {"done"}
    assert all(one.value for one in outcomes)
    assert sender.SENDER.drain(60) == 0
    assert sorted(body["order"] for _, body, _ in station.found()) == [0, 1, 2]
