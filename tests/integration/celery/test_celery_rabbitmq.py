"""Tasks of real Celery workers over RabbitMQ: what its queues do with a delivery that did not run; and tasks that leave by the outbox."""

import socket
import threading
import time
import uuid

import pytest

from queues.celery_workers import Shop
from servers.wires import Gate

pytestmark = pytest.mark.sampled(broker=1)

CLASSIC, QUORUM = {}, {"x-queue-type": "quorum"}


@pytest.fixture
def opened(rabbitmq, tmp_path):
    """Give a function that opens an application with a queue of its own, which has these arguments."""
    made = []

    def shop(arguments, transport=None, conf=None, **more):
        queue = {"name": f"celery-{uuid.uuid4().hex}", "arguments": arguments, **more}
        given = {"queue": queue, "transport": transport or {}, "conf": conf or {}}
        made.append(Shop(rabbitmq.url, tmp_path, backend=f"file://{tmp_path}", **given))
        return made[-1], queue["name"]

    yield shop
    for one in made:
        one.stop()


@pytest.mark.sampled("quorum")
@pytest.mark.parametrize("arguments", [CLASSIC, QUORUM], ids=["classic", "quorum"])
def test_a_busy_task_comes_again_on_both_kinds_of_queue(opened, arguments):
    shop, _ = opened(arguments)
    shop.start("-c", 2)
    first, second = shop.send("slow", "a"), shop.send("slow", "a")
    shop.until(lambda: shop.log.count("comes again") >= 2)
    shop.open()
    assert [shop.get(first), shop.get(second)] == [0, 0]
    assert shop.journal() == {"begin a": 1, "end a 0": 1}


def test_a_parked_task_goes_to_the_dead_letter_exchange(opened, rabbitmq):
    graveyard = rabbitmq.queue(f"graveyard-{uuid.uuid4().hex}")
    shop, queue = opened({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": graveyard})
    shop.start("-c", 1)
    result = shop.send("refused", "a")
    shop.until(lambda: rabbitmq.ready(graveyard) == 1)
    assert shop.journal() == {"refused a": 1}
    (dead,) = rabbitmq.take(graveyard)
    assert dead.headers["id"] == result.id
    assert dead.headers["x-first-death-reason"] == "rejected"
    assert rabbitmq.ready(f"{queue}.onceward-dead") == 0


def test_a_parked_task_that_was_acknowledged_before_it_ran_is_published_as_a_dead_letter(opened, rabbitmq):
    graveyard = rabbitmq.queue(f"graveyard-{uuid.uuid4().hex}")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": graveyard}
    shop, queue = opened(arguments, conf={"task_acks_late": False})
    shop.start("-c", 1)
    shop.send("refused", "a")
    shop.until(lambda: f"goes to {queue}.onceward-dead" in shop.log)
    shop.until(lambda: rabbitmq.ready(f"{queue}.onceward-dead") == 1)


def test_a_task_that_cannot_be_published_again_stays_with_the_broker(opened, rabbitmq):
    shop, queue = opened(CLASSIC)
    dead = rabbitmq.queue(f"{queue}.onceward-dead", "quorum")  # of another kind than the worker declares
    shop.start("-c", 1)
    shop.send("refused", "a")
    shop.until(lambda: "could not be published again" in shop.log)
    before, began = shop.log.count("could not be published again"), time.monotonic()
    shop.until(lambda: shop.log.count("could not be published again") >= before + 3)
    assert time.monotonic() - began > 2.0, "it comes again in a hot loop"
    rabbitmq.do(lambda channel: channel.queue_delete(dead))
    shop.until(lambda: rabbitmq.ready(dead) == 1)
    assert shop.journal() == {"refused a": 1}


@pytest.mark.sampled("fails")
@pytest.mark.parametrize("order", ["asks", "fails"])
def test_a_retry_that_the_broker_refuses_puts_the_message_back(opened, rabbitmq, order):
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    shop, queue = opened(full, transport={"confirm_publish": True})
    shop.start("-c", 1)
    result = shop.send("late", order)
    shop.until(lambda: shop.journal()[f"late {order} 0"] == 1)
    shop.send("charge", {"id": 1})  # it waits, so the queue is full
    shop.until(lambda: rabbitmq.ready(queue) == 1)
    shop.open()
    assert shop.get(result) == 1
    assert "could not be sent for its retry" in shop.log
    assert shop.journal()[f"late {order} 1"] == 1


class DeafGate(Gate):
    """Loses what a client sends from ``mark`` on, the first time that it does, until all are cut off."""

    def __init__(self, port, mark):
        self._mark, self.is_deaf = mark, threading.Event()
        super().__init__(port)

    def _converse(self, client, server):
        back, lost = self._begin(self._pump, server, client, self.loses), False
        while chunk := client.recv(65536):
            if self._mark in chunk and not self.is_deaf.is_set():
                lost = True
                self.is_deaf.set()
            if not lost:
                server.sendall(chunk)
        server.shutdown(socket.SHUT_RDWR)
        back.join()


def test_a_task_is_acknowledged_when_its_next_message_is_confirmed(rabbitmq, tmp_path):
    name = f"celery-{uuid.uuid4().hex}"
    gate, queue = DeafGate(rabbitmq.port, b"onceward-receives"), {"name": name, "arguments": CLASSIC}
    client = Shop(rabbitmq.url, tmp_path, backend=f"file://{tmp_path}", queue=queue)
    worker = Shop(f"amqp://guest:guest@127.0.0.1:{gate.port}/", tmp_path, backend=f"file://{tmp_path}", queue=queue)
    try:
        worker.start("-c", 1)
        held = client.once.acquire("a", name="shop.slow", lease=600)
        client.open()
        result = client.send("slow", "a")
        worker.until(gate.is_deaf.is_set)
        held.release()
        gate.turn(rabbitmq.port)
        assert worker.get(result) == 0
    finally:
        worker.stop()
        client.stop()
        gate.close()
