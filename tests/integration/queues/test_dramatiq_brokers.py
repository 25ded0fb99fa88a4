"""Dramatiq's actors under a guard, with its own worker and brokers that are away for a moment: nothing is lost by that."""

import threading
import uuid

import dramatiq
import pika
import pytest
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker
from pika.adapters.blocking_connection import BlockingChannel
from redis import ConnectionError as RedisIsAwayError

from onceward import Once
from onceward.dramatiq import exactly
from servers.redis import Redis
from waiting import PATIENCE, until

pytestmark = pytest.mark.sampled(broker=1)

TRIES = 8  # Dramatiq's RabbitmqBroker itself tries 6 times


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    """Dramatiq tries a failed acknowledgement and a lost connection again soon."""
    monkeypatch.setattr("dramatiq.worker.POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0.05)
    monkeypatch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 1.0)


@pytest.fixture
def failures():
    """How often the broker is still away when a message is sent."""
    return []


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request, failures, monkeypatch):
    server = request.getfixturevalue(request.param)

    def failing(send, error):
        def sent(*args, **kwargs):
            if failures:
                failures.pop()
                raise error
            return send(*args, **kwargs)

        return sent

    if request.param == "redis":
        made = RedisBroker(url=server.url, namespace=uuid.uuid4().hex)
        made.do_enqueue = failing(made.do_enqueue, RedisIsAwayError("reset by peer"))
    else:
        made = RabbitmqBroker(url=server.url, confirm_delivery=True)
        error = pika.exceptions.StreamLostError("reset by peer")
        monkeypatch.setattr(BlockingChannel, "basic_publish", failing(BlockingChannel.basic_publish, error))
    yield made
    made.close()
    if request.param == "redis":
        made.client.connection_pool.disconnect()


@pytest.fixture
def work():
    workers = []

    def start(broker):
        workers.append(dramatiq.Worker(broker, worker_timeout=50, worker_threads=1))
        workers[0].start()
        return workers[0]

    yield start
    for worker in workers:
        worker.stop(timeout=10_000)


def actor(broker, function, queue):
    declared = dramatiq.actor(function, broker=broker, queue_name=queue, min_backoff=1, max_backoff=2)
    return exactly(Once("memory:"), key="order")(declared)


def test_a_retry_that_cannot_be_sent_at_once_is_not_lost(broker, failures, work):
    runs = []

    def charge(order):
        runs.append(order)
        if len(runs) == 1:
            failures.extend([True] * TRIES)
            raise ValueError

    actor(broker, charge, f"q{uuid.uuid4().hex}").send(1)
    work(broker)
    until(lambda: len(runs) == 2)
    assert not failures


def test_a_message_is_not_acknowledged_in_the_place_of_another_after_a_reconnection(rabbitmq, work, monkeypatch):
    monkeypatch.setattr("dramatiq.worker.QUEUE_PREFETCH", 4)
    queue, first, others, runs = f"q{uuid.uuid4().hex}", threading.Event(), threading.Event(), []
    broker = RabbitmqBroker(url=rabbitmq.url, confirm_delivery=True)

    def charge(order):
        runs.append(order)
        if order >= 0:
            (others if order else first).wait(PATIENCE)

    def consumer():
        found = worker.consumers[queue].consumer
        return getattr(found, "_consumer", found)  # RabbitMQ's, behind ours

    def unacknowledged():
        return getattr(consumer(), "known_tags", None)

    guarded = actor(broker, charge, queue)
    for order in (-2, -1, 0, 1, 2, 3):
        guarded.send(order)
    worker = work(broker)
    try:
        until(lambda: unacknowledged() == {3, 4, 5, 6})  # 3 is order 0, which runs
        consumer().connection.add_callback_threadsafe(consumer().connection.close)
        until(lambda: unacknowledged() == {1, 2, 3, 4})  # 3 is order 2 now, which waits
        first.set()
        until(lambda: runs == [-2, -1, 0, 1])
        assert unacknowledged() == {1, 2, 3, 4}
    finally:
        first.set()
        others.set()
        worker.join()
        broker.close()


def test_no_thread_waits_for_rabbitmq_with_a_message_that_is_delivered_once_more(rabbitmq, work, monkeypatch):
    """It would also hold up a worker that is stopped while RabbitMQ is away."""
    queue, runs, away, publish = f"q{uuid.uuid4().hex}", [], threading.Event(), BlockingChannel.basic_publish
    broker = RabbitmqBroker(url=rabbitmq.url, confirm_delivery=True)

    def published(*args, **kwargs):
        if away.is_set():
            raise pika.exceptions.StreamLostError("reset by peer")
        return publish(*args, **kwargs)

    def charge(order):
        runs.append(order)
        if len(runs) == 1:
            away.set()
            raise ValueError

    monkeypatch.setattr(BlockingChannel, "basic_publish", published)
    actor(broker, charge, queue).send(1)
    worker = work(broker)
    until(away.is_set)
    connection = worker.consumers[queue].consumer._consumer.connection
    connection.add_callback_threadsafe(connection.close)
    until(lambda: runs == [1, 1])
    worker.stop(timeout=10_000)
    assert not any(thread.is_alive() for thread in worker.workers)
    broker.close()


def test_delayed_messages_that_a_worker_holds_are_not_forgotten_while_redis_is_away(work):
    server, runs = Redis(appendonly="yes", appendfsync="always"), []
    broker = RedisBroker(url=server.url)

    def charge(order):
        runs.append(order)

    try:
        guarded = actor(broker, charge, "orders")
        for order in range(2):
            guarded.send_with_options(args=(order,), delay=3000)
        worker = work(broker)
        until(lambda: worker.consumers["orders.DQ"].delay_queue.qsize() == 2)
        server.kill()
        until(lambda: worker.consumers["orders.DQ"].delay_queue.qsize() == 0)
        server.start()
        until(lambda: sorted(runs) == [0, 1])
        until(lambda: broker.do_qsize("orders") == 0)
        worker.stop(timeout=10_000)
    finally:
        broker.client.connection_pool.disconnect()
        server.stop()
