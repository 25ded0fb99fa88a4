"""The scenarios of examples/pipelines, by the command and on real servers: what the files promise is what happens."""

import asyncio
import collections
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid

import nats as nats_client
import pytest
from nats.js.api import StreamConfig
from typer.testing import CliRunner

from onceward import Once
from onceward.cli.app import command_line
from places import EXAMPLES, SOURCES
from servers.orphans import watched
from servers.redis import Redis

PATIENCE = 240
FILES = sorted((EXAMPLES / "pipelines").glob("*.yaml"))


class Shop:
    """An output, and a pipeline that runs until it is there."""

    def __init__(self, folder, ledger):
        self.out, self.audit = folder / "out.ndjson", folder / "audit.ndjson"
        self._log = folder / "log"
        self.given = {"LEDGER": ledger, "OUT": str(self.out), "AUDIT": str(self.audit), "PYTHONPATH": str(SOURCES)}
        self._running = []

    def start(self, name, **given):
        command = [sys.executable, "-m", "onceward", "run", str(EXAMPLES / "pipelines" / f"{name}.yaml")]
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **self.given, **given})
        self._running.append(watched(process))
        return process

    def stop(self):
        for process in self._running:
            process.send_signal(signal.SIGTERM)
        for process in self._running:
            assert process.wait(PATIENCE) == 0, self._log.read_text()

    def until(self, holds):
        limit = time.monotonic() + PATIENCE
        while not (found := holds()):
            assert time.monotonic() < limit, self._log.read_text()
            time.sleep(0.05)
        return found

    def written(self, count, file=None):
        """Return the lines of the output, as soon as there are so many."""
        file = file or self.out
        lines = self.until(lambda: file.exists() and len(got := file.read_text().splitlines()) >= count and got)
        return [json.loads(line) for line in lines]


@pytest.fixture
def shop(tmp_path):
    made = Shop(tmp_path, f"sqlite:///{tmp_path}/ledger.db")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def server():
    """A Redis server that keeps its streams."""
    made = Redis(appendonly="yes")
    yield made
    made.stop()


@pytest.fixture
def bank():
    """A server that counts its requests by path and key; reports are ready the third time."""

    class Bank(http.server.BaseHTTPRequestHandler):
        asked = None

        def do_GET(self):
            self.asked[self.path] += 1
            if self.path.startswith("/reports"):
                self.answer({"status": "ready" if self.asked[self.path] >= 3 else "pending"})
            else:
                self.answer({"score": 7})

        def do_POST(self):
            order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.asked[order["id"]] += 1
            assert self.headers["Idempotency-Key"]
            self.answer({"charged": order["id"]})

        def answer(self, value):
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    Bank.asked = collections.Counter()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bank)
    server.asked, server.url = Bank.asked, f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def orders(*ids, **more):
    return [{"id": one, **more} for one in ids]


def add(server, stream, *messages):
    with server.client() as client:
        for message in messages:
            client.xadd(stream, {"__data__": json.dumps({"data": json.dumps(message)})})


@pytest.mark.sampled(file=1)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_scenario_has_no_mistake_and_does_what_its_examples_say(file, tmp_path, monkeypatch):
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    monkeypatch.setenv("AUDIT", str(tmp_path / "audit"))
    for command in ("vet", "test"):
        done = CliRunner().invoke(command_line(), [command, str(file)])
        assert done.exit_code == 0, done.output


@pytest.mark.nightly
def test_system_lock(shop, ministack, dynoxide, table, aws, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", ministack.url)
    queue = ministack.queue(f"orders-{uuid.uuid4().hex[:8]}")
    for order in orders(*"abacbca"):
        ministack.ask("AmazonSQS.SendMessage", QueueUrl=queue, MessageBody=json.dumps(order))
    ledger = f"dynamodb://{table}?endpoint={dynoxide.url}"
    shop.start("system-lock", ORDERS_QUEUE=queue, LEDGER=ledger)
    shop.until(lambda: int(ministack.queue_attributes(queue)["ApproximateNumberOfMessages"]) == 0)
    shop.written(3)
    shop.stop()
    assert sorted(one["id"] for one in shop.written(3)) == ["a", "b", "c"]
    assert all(one["processed"] for one in shop.written(3))
    shop._running.clear()


@pytest.mark.nightly
def test_consumer_lock(shop, kafka, topic, postgres15):
    kafka.send(topic, *[json.dumps(order).encode() for order in orders(*"abacbca")])
    schema = f"{postgres15.url}?schema=pipes_{uuid.uuid4().hex[:8]}"
    shop.start("consumer-lock", ORDERS_TOPIC=topic, KAFKA_SERVERS=kafka.servers, LEDGER=schema)
    once = Once(schema)
    shop.until(lambda: once.ledger.stats()["COMPLETED"] >= 7 + 3 and kafka.lag("orders-consumer", topic) == 0)
    once.close()
    assert sorted(one["id"] for one in shop.written(3)) == ["a", "b", "c"]


@pytest.mark.nightly
def test_producer_lock(shop, rabbitmq, server):
    queue = rabbitmq.queue(f"orders-{uuid.uuid4().hex[:8]}")
    rabbitmq.publish(queue, *orders(*"abacbca"))
    shop.start("producer-lock", ORDERS_QUEUE=queue, AMQP_URL=rabbitmq.url, LEDGER=f"{server.url}?prefix={queue}")
    assert sorted(one["id"] for one in shop.written(7, shop.audit)) == [*"aaabbcc"]
    assert sorted(one["id"] for one in shop.written(3)) == ["a", "b", "c"]


@pytest.mark.nightly
def test_enrich_once(shop, nats, bank, postgres15):
    subject = f"orders-{uuid.uuid4().hex[:8]}"

    async def publish():
        connection = await nats_client.connect(nats.url)
        jetstream = connection.jetstream(timeout=30)
        await jetstream.add_stream(StreamConfig(name=subject, subjects=[subject]))
        for number in range(8):
            await jetstream.publish(subject, json.dumps({"id": number, "customer": f"c-{number % 2}"}).encode())
        await connection.close()

    asyncio.run(publish())
    schema = f"{postgres15.url}?schema=pipes_{uuid.uuid4().hex[:8]}"
    shop.start("enrich-once", ORDERS_SUBJECT=subject, NATS_URL=nats.url, SCORES=bank.url, LEDGER=schema)
    lines = shop.written(8)
    assert sorted((one["id"], one["customer"], one["score"]) for one in lines) == [
        (number, f"c-{number % 2}", 7) for number in range(8)
    ]
    assert bank.asked == {"/scores/c-0": 1, "/scores/c-1": 1}


def test_retry_a_step(shop, server, bank):
    stream = f"orders-{uuid.uuid4().hex[:8]}"
    add(server, stream, *orders("r-1", "r-1"))
    shop.start("retry-a-step", ORDERS_STREAM=stream, REDIS_URL=server.url, REPORTS=bank.url)
    assert shop.written(1) == [{"id": "r-1", "report": {"status": "ready"}}]
    shop.until(lambda: server.ask("XPENDING", stream, "orders-retry").find("'pending': 0") > 0)
    assert bank.asked == {"/reports/r-1": 3}


@pytest.mark.nightly
def test_batches(shop, ministack, bank, aws, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", ministack.url)
    queue = ministack.queue(f"orders-{uuid.uuid4().hex[:8]}")
    for body in ({"orders": orders(*"abc")}, {"control": "flush"}, {"orders": orders(*"cd")}):
        ministack.ask("AmazonSQS.SendMessage", QueueUrl=queue, MessageBody=json.dumps(body))
    shop.start("batches", ORDERS_QUEUE=queue, BANK=bank.url)
    lines = shop.written(2)
    charged = {tuple(order["charge"]["charged"] for order in line["orders"]) for line in lines}
    assert charged == {tuple("abc"), tuple("cd")}
    assert bank.asked == dict.fromkeys("abcd", 1)


@pytest.mark.nightly
def test_backpressure(shop, server):
    stream = f"orders-{uuid.uuid4().hex[:8]}"
    once = Once(shop.given["LEDGER"])
    held = once.acquire("database", name="maintenance", lease=600.0)
    shop.start("backpressure", ORDERS_STREAM=stream, REDIS_URL=server.url)
    add(server, stream, *orders("o-1"))
    shop.until(lambda: "holds all input" in shop._log.read_text())
    assert once.ledger.stats()["COMPLETED"] == 0
    held.complete(None)
    assert shop.written(1) == orders("o-1")
    once.close()
