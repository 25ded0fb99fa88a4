"""Workers of task queues that are told to stop by a signal: what runs ends or comes again, and nothing is lost or doubled."""

import os
import subprocess
import sys

import dramatiq
import psycopg
import pytest
from dramatiq.brokers.redis import RedisBroker
from procrastinate import App, SyncPsycopgConnector
from psycopg.types.json import Jsonb

from onceward import Once
from places import SOURCES, SUPPORT
from servers.orphans import watched
from waiting import until

PATIENCE = 120  # seconds


@pytest.fixture
def started(tmp_path):
    """Start a worker of Dramatiq or Procrastinate by its own command."""
    begun = []

    def start(command, **environment):
        paths = {"PYTHONPATH": f"{SOURCES}:{SUPPORT}:{SUPPORT / 'workers'}"}
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                env=os.environ | paths | environment,
                stdout=log,
                stderr=log,
                cwd=tmp_path,
            )
        begun.append(watched(process))
        return process

    yield start
    for process in begun:
        process.kill()
        process.wait()


def interrupted_and_redelivered(started, command, folder, **environment):
    """Stop a worker in the middle of a task by SIGTERM, and let another one finish it."""
    said = lambda: (folder / "log").read_text()[-3000:]
    begun = lambda: (folder / "begun").read_text().splitlines() if (folder / "begun").exists() else []
    environment |= {"SIGNALLED_PLACE": str(folder)}
    first = started(command, **environment)
    until(begun, told=said)
    first.terminate()
    assert first.wait(PATIENCE) is not None
    assert not (folder / "done").exists()
    second = started(command, **environment)
    until((folder / "done").exists, told=said)
    once = Once(f"sqlite:///{folder / 'ledger.db'}")
    until(lambda: [record.status for record, _ in once.ledger.records()] == ["COMPLETED"], told=said)
    once.close()
    second.terminate()
    second.wait(PATIENCE)
    assert len(begun()) == 2


def test_a_dramatiq_worker_that_is_told_to_stop_loses_no_message(redis, started, tmp_path):
    broker = RedisBroker(url=redis.url, namespace=f"signalled-{tmp_path.name}")
    broker.declare_queue("default")
    broker.enqueue(dramatiq.Message("default", "run", (42,), {}, {}))
    command = ["dramatiq", "signalled_queues", "-p", "1", "-t", "1", "--skip-logging"]
    interrupted_and_redelivered(started, command, tmp_path, SIGNALLED_REDIS=redis.url)


def test_a_procrastinate_worker_that_is_told_to_stop_loses_no_job(postgres15, started, tmp_path):
    schema = f"signalled_{tmp_path.name}"
    postgres15.sql(f'CREATE SCHEMA "{schema}"', database="test")
    url = f"{postgres15.url}?options=-csearch_path%3D{schema}"
    job = "INSERT INTO procrastinate_jobs (queue_name, task_name, priority, args) VALUES ('default', 'run', 0, %s)"
    tables = App(connector=SyncPsycopgConnector()).schema_manager.get_schema()
    with psycopg.connect(url) as connection:
        connection.execute(tables.replace("%%", "%"))
        connection.execute(job, (Jsonb({"order": 42}),))
    command = ["procrastinate", "--app=signalled_queues.app", "worker", "--shutdown-graceful-timeout=0.1", "-p", "0.5"]
    interrupted_and_redelivered(started, command, tmp_path, SIGNALLED_POSTGRES=url)
    with psycopg.connect(url) as connection:
        ended = connection.execute("SELECT status::text, attempts FROM procrastinate_jobs").fetchall()
    assert ended == [("succeeded", 1)]
