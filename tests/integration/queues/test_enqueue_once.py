"""TaskJobs that are queued once for a key, each at its real broker: producers that race, and one that is killed."""

import json
import os
import signal
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor

import dramatiq
import psycopg
import pytest
from dramatiq.brokers.stub import StubBroker
from procrastinate import App, PsycopgConnector
from redis import Redis

from faults.processes import PATIENCE, workers
from onceward import Once
from onceward.outbox import drain
from places import SOURCES, SUPPORT, WORKERS
from waiting import until

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
        with Redis.from_url(self._redis.url) as client, psycopg.connect(self._jobs) as connection:
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
