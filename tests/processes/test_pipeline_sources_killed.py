"""A pipeline's process is killed in the middle of its messages. For each source, nothing is lost, and what is done is not done again."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import uuid
from collections import Counter

import httpx
import nats as nats_client
import pytest
from nats.js.api import ConsumerConfig, StreamConfig

from onceward import Once
from places import WORKERS
from servers.orphans import watched
from servers.redis import Redis
from waiting import until

PATIENCE = 240
MESSAGES, CONCURRENCY = 40, 4
LEASE = 3.0
SHOP = """
import os, time

def charge(message):
    time.sleep(0.05)
    line = f"{message['id']}\\n".encode()
    journal = os.open(JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(journal, line)
    os.close(journal)

def hang(message):
    journal = os.open(JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(journal, b"begun\\n")
    os.close(journal)
    time.sleep(600)
"""


class Place:
    """A pipeline in a folder, and its processes."""

    def __init__(self, folder, source, function="charge", guard="key: message.id, "):
        self.journal, self.ledger = folder / "journal", f"sqlite:///{folder}/ledger.db"
        self.name = f"shop-{uuid.uuid4().hex[:8]}"
        self._folder = folder
        module = f"shop_{uuid.uuid4().hex}"
        (folder / f"{module}.py").write_text(f"JOURNAL = {str(self.journal)!r}\n{SHOP}")
        self._text = (
            f"name: {self.name}\nledger: {self.ledger}\nguard: {{{guard}lease: {LEASE}}}\nconcurrency: {CONCURRENCY}\n"
            f"backoff: {{first: 0.2, longest: 2}}\nsource: {json.dumps(source(self.name))}\n"
            f"steps:\n  - name: charge\n    call: {{function: '{module}:FUNCTION'}}\n"
        )
        self.write(function)
        self.kills = 0

    def write(self, function):
        (self._folder / "shop.yaml").write_text(self._text.replace("FUNCTION", function))

    def start(self):
        """Start a process; return it when it runs."""
        command = [sys.executable, WORKERS / "pipeline_worker.py", self._folder / "shop.yaml"]
        process = watched(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        process.said = process.stdout.readline().strip()
        assert process.said, "the pipeline did not start"
        return process

    def kill(self, process):
        process.kill()
        process.communicate(timeout=PATIENCE)
        self.kills += 1

    def end(self, process):
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0

    @property
    def made(self):
        """How often the effect of each message was made."""
        with contextlib.suppress(FileNotFoundError):
            return Counter(self.journal.read_text().split())
        return Counter()


@pytest.fixture
def sqs(ministack, aws, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", ministack.url)
    queue = ministack.queue(f"orders-{uuid.uuid4().hex[:8]}")

    def send(orders):
        for order in orders:
            ministack.ask("AmazonSQS.SendMessage", QueueUrl=queue, MessageBody=json.dumps(order))

    return lambda name: {"sqs": {"queue": queue, "visibility": 5, "wait": 1}}, send


@pytest.fixture
def kafka_topic(kafka, topic):
    def send(orders):
        kafka.send(topic, *[json.dumps(order).encode() for order in orders])

    settings = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 1000}
    return lambda name: {"kafka": {"topic": topic, "servers": kafka.servers, "settings": settings}}, send


@pytest.fixture
def rabbitmq_queue(rabbitmq):
    queue = rabbitmq.queue(f"orders-{uuid.uuid4().hex[:8]}")
    return (
        lambda name: {"rabbitmq": {"queue": queue, "url": rabbitmq.url, "wait": 1}},
        lambda orders: rabbitmq.publish(queue, *orders),
    )


@pytest.fixture
def nats_subject(nats):
    subject = f"orders-{uuid.uuid4().hex[:8]}"

    def do(work):
        async def run():
            connection = await nats_client.connect(nats.url)
            try:
                await work(connection.jetstream(timeout=30))
            finally:
                await connection.close()

        asyncio.run(run())

    def source(name):
        async def prepare(jetstream):
            await jetstream.add_stream(StreamConfig(name=subject, subjects=[subject]))
            # What a killed process held comes again soon.
            await jetstream.add_consumer(
                subject, ConsumerConfig(durable_name=name, filter_subject=subject, ack_wait=5.0)
            )

        do(prepare)
        return {"nats": {"subject": subject, "url": nats.url}}

    def send(orders):
        async def publish(jetstream):
            for order in orders:
                await jetstream.publish(subject, json.dumps(order).encode())

        do(publish)

    return source, send


@pytest.fixture
def redis_stream():
    server = Redis(appendonly="yes")

    def send(orders):
        with server.client() as client:
            for order in orders:
                client.xadd("orders", {"__data__": json.dumps({"data": json.dumps(order)})})

    yield lambda name: {"redis_streams": {"stream": "orders", "url": server.url, "idle": 3}}, send
    server.stop()


@pytest.mark.sampled("nats_subject")
@pytest.mark.parametrize("kind", ["sqs", "kafka_topic", "rabbitmq_queue", "nats_subject", "redis_stream"])
def test_a_queues_messages_survive_kills_of_the_pipeline(request, kind, tmp_path):
    source, send = request.getfixturevalue(kind)
    shop = Place(tmp_path, source)
    send([{"id": f"o-{number}"} for number in range(MESSAGES)])
    for done in (MESSAGES // 4, MESSAGES // 2):
        process = shop.start()
        until(lambda done=done: len(shop.made) >= done)
        shop.kill(process)
    process = shop.start()
    until(lambda: len(shop.made) == MESSAGES)
    once = Once(shop.ledger)
    until(lambda: once.ledger.stats()["COMPLETED"] == MESSAGES)
    shop.end(process)
    once.close()
    repeats = shop.made.total() - MESSAGES
    assert repeats <= shop.kills * CONCURRENCY  # only those that were under way
    assert set(shop.made) == {f"o-{number}" for number in range(MESSAGES)}


def test_accepted_webhooks_survive_a_kill_and_are_not_delivered_again(tmp_path):
    shop = Place(tmp_path, lambda name: {"webhook": {"token": "t0ken", "port": 0}}, function="hang")
    process = shop.start()
    for number in range(6):
        headers = {"Authorization": "Bearer t0ken", "Idempotency-Key": f"e-{number}"}
        answer = httpx.post(
            f"http://127.0.0.1:{process.said}/", json={"id": f"o-{number}"}, headers=headers, timeout=60
        )
        assert answer.status_code == 202
    until(lambda: shop.made["begun"] == CONCURRENCY)  # the others wait
    shop.kill(process)
    shop.write("charge")
    process = shop.start()
    until(lambda: set(shop.made) == {"begun", *(f"o-{number}" for number in range(6))})
    once = Once(shop.ledger)
    until(lambda: once.ledger.stats()["COMPLETED"] == 12)  # the inbox's records and the pipeline's
    shop.end(process)
    once.close()
    assert shop.made.total() == 6 + CONCURRENCY


def test_a_window_of_a_killed_pipeline_is_finished_by_the_next(tmp_path):
    source = {"schedule": {"every": "1000d", "data": 1}}
    shop = Place(tmp_path, lambda name: source, function="hang", guard="")
    process = shop.start()
    until(lambda: shop.made["begun"] == 1)
    shop.kill(process)
    shop._text = shop._text.replace("steps:\n", "steps:\n  - map: {set: {id: message.window}}\n")
    shop.write("charge")
    process = shop.start()
    until(lambda: len(shop.made) == 2)
    shop.end(process)
    assert shop.made.total() == 2
