"""Campaigns on Dramatiq: workers are killed, and the broker and the ledger are restarted in the middle."""

import sys
from pathlib import Path

import dramatiq
import pytest
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker

from faults.campaign import campaign, own_ledger
from onceward import Once
from servers.rabbitmq import Rabbitmq
from servers.redis import Redis

pytestmark = pytest.mark.nightly

WORKER = Path(__file__).parent.parent / "support/workers/dramatiq_worker.py"
QUEUE = "campaign"


@pytest.fixture
def brokers():
    """A Redis that keeps what it has acknowledged."""
    server = Redis(appendonly="yes", appendfsync="always")
    yield server
    server.stop()


@pytest.fixture
def rabbitmq_server():
    """A RabbitMQ of its own."""
    server = Rabbitmq()
    yield server
    server.stop()


def unpark_all(ledger):
    once = Once(ledger.url)
    for record, _ in once.ledger.records(status="PARKED"):
        once.ledger.unpark(record.key)
    once.close()


def again(server):
    """Kill a server and start it again."""
    server.kill()
    server.start()


def message(number):
    return dramatiq.Message(QUEUE, "handle", ({"id": number},), {}, {})


def test_each_message_takes_effect_once_on_dramatiq_with_redis(brokers, tmp_path, request):
    broker = RedisBroker(url=brokers.url)
    broker.declare_queue(QUEUE)

    def left():
        client = broker.client
        return sum(client.hlen(f"dramatiq:{name}.msgs") for name in (QUEUE, f"{QUEUE}.DQ"))

    def redrive(_):
        unpark_all(ledger)
        letters = broker.client.hgetall(f"dramatiq:{QUEUE}.XQ.msgs")
        for letter_id, letter in letters.items():
            broker.enqueue(dramatiq.Message.decode(letter))
            broker.client.hdel(f"dramatiq:{QUEUE}.XQ.msgs", letter_id)
            broker.client.zrem(f"dramatiq:{QUEUE}.XQ", letter_id)

    with own_ledger("postgresql", request, tmp_path) as (ledger, server):
        campaign(
            ledger,
            server,
            tmp_path,
            command=[sys.executable, WORKER],
            publish=lambda numbers: [broker.enqueue(message(number)) for number in numbers],
            left=left,
            restart=lambda: again(brokers),
            redrive=redrive,
            environment={"DRAMATIQ_BROKER": brokers.url},
        )


def test_each_message_takes_effect_once_on_dramatiq_with_rabbitmq(rabbitmq_server, tmp_path, request):
    broker = RabbitmqBroker(url=rabbitmq_server.url, confirm_delivery=True)
    broker.declare_queue(QUEUE, ensure=True)

    def redrive(_):
        unpark_all(ledger)
        for letter in rabbitmq_server.take(f"{QUEUE}.XQ"):
            broker.enqueue(dramatiq.Message.decode(letter.body))

    def left():
        held = rabbitmq_server.held()
        return sum(held[name] for name in (QUEUE, f"{QUEUE}.DQ"))

    with own_ledger("sqlite", request, tmp_path) as (ledger, server):
        campaign(
            ledger,
            server,
            tmp_path,
            command=[sys.executable, WORKER],
            publish=lambda numbers: [broker.enqueue(message(number)) for number in numbers],
            left=left,
            restart=rabbitmq_server.restart,
            redrive=redrive,
            environment={"DRAMATIQ_BROKER": rabbitmq_server.url},
        )
    broker.close()
