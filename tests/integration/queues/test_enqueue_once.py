"""TaskJobs that are queued once for a key by producers that race or are killed; and Dramatiq's actors with brokers that are away for a moment."""

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import dramatiq
import pika
import psycopg
import pytest
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker
from dramatiq.brokers.stub import StubBroker
from pika.adapters.blocking_connection import BlockingChannel
from procrastinate import App, PsycopgConnector
from redis import ConnectionError as RedisIsAwayError
from redis import Redis as Client

from faults.processes import PATIENCE, workers
from onceward import Once
from onceward.dramatiq import exactly
from onceward.outbox import drain
from places import SOURCES, SUPPORT, WORKERS
from servers.redis import Redis
from waiting import until

pytestmark = pytest.mark.sampled(broker=1)

STUB = StubBroker()
TASKS = {"celery_task", "redis_actor", "rabbitmq_actor", "procrastinate_task", "taskiq_task", "rq_job"}


@dramatiq.actor(broker=STUB, queue_name="orders")
def charge(order): ...


def test_of_many_threads_one_queues_the_job_on_every_ledger(ledger):
    once = Once(ledger.url)
    STUB.flush_all()
    with ThreadPoolExecutor(8) as threads:
        told = list(threads.map(lambda _: once.enqueue(charge, 7, key="k"), range(16)))
    assert sorted(told) == [False] * 15 + [True]
    assert drain(60) == 0
    assert STUB.queues["orders"].qsize() == 1
    ((record, _),) = once.ledger.records()
    assert (record.key, record.unsent) == ("enqueue:test_enqueue_once:charge:k", None)
    once.close()


class Queues:
    """The queues of shop_tasks.py on running servers."""

    def __init__(self, redis, rabbitmq, postgres):
        self.name = f"orders-{uuid.uuid4().hex}"
        self._redis, self._rabbitmq = redis, rabbitmq
        schema = f"jobs_{uuid.uuid4().hex}"
        postgres.sql(f"CREATE SCHEMA {schema}", database="test")
        self._jobs = f"{postgres.url}?options=-csearch_path%3D{schema}"
        with psycopg.connect(self._jobs) as connection:
            app = App(connector=PsycopgConnector(conninfo=self._jobs))
            connection.execute(app.schema_manager.get_schema().replace("%%", "%"))
        self.environment = {
            "SHOP_REDIS": redis.url,
            "SHOP_RABBITMQ": rabbitmq.url,
            "SHOP_POSTGRES": self._jobs,
            "SHOP_QUEUE": self.name,
        }

    def lengths(self, among=TASKS):
        """Return how many jobs wait in each."""
        with Client.from_url(self._redis.url) as client, psycopg.connect(self._jobs) as connection:
            (jobs,) = connection.execute("SELECT count(*) FROM procrastinate_jobs").fetchone()
            looks = {
                "celery_task": lambda: client.llen(f"celery-{self.name}"),
                "redis_actor": lambda: client.llen(f"{self.name}:orders"),
                "rabbitmq_actor": lambda: self._rabbitmq.ready(self.name),
                "procrastinate_task": lambda: jobs,
                "taskiq_task": lambda: client.xlen(f"stream-{self.name}"),
                "rq_job": lambda: client.llen(f"rq:queue:{self.name}"),
            }
            return {name: looks[name]() for name in among}


@pytest.fixture
def queues(redis, rabbitmq, postgres15):
    return Queues(redis, rabbitmq, postgres15)


@pytest.fixture
def start(queues):
    with workers("enqueue_worker.py") as begin:
        # The clients of the brokers warn of what is theirs.
        env = {**queues.environment, "PYTHONWARNINGS": "default"}
        yield lambda *arguments: begin(*arguments, env=env)


def queued(process):
    told, _ = process.communicate("go\n", timeout=PATIENCE)
    return {(name, key): is_queued for name, key, is_queued in json.loads(told.splitlines()[-1])}


def test_a_relay_sends_what_a_killed_producer_has_recorded(queues, start, tmp_path):
    ledger = f"sqlite:///{tmp_path}/ledger.db"
    producer = start(ledger, "killed", "k")
    assert queued(producer) == {(name, "k"): True for name in TASKS}
    assert producer.returncode == -signal.SIGKILL
    unsent = TASKS - {"rabbitmq_actor"}  # whose queue is made by its first message
    assert queues.lengths(unsent) == dict.fromkeys(unsent, 0)
    once = Once(ledger)
    assert len(list(once.ledger.records(status=["UNSENT"]))) == len(TASKS)

    def relayed():
        command = [sys.executable, "-m", "onceward", "relay", "--once", "--import", "shop_tasks", "--store", ledger]
        environment = {**os.environ, **queues.environment, "PYTHONPATH": f"{SOURCES}:{SUPPORT}:{WORKERS}"}
        told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        assert told.returncode in {0, 1}, told
        return not list(once.ledger.records(status=["UNSENT", "REFUSED"]))

    until(relayed)
    assert queues.lengths() == dict.fromkeys(TASKS, 1)
    assert queued(start(ledger, "threads", "k")) == {(name, "k"): False for name in TASKS}
    assert queues.lengths() == dict.fromkeys(TASKS, 1)
    once.close()


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
