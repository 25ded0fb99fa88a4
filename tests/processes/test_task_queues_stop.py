"""A worker of a task queue that is told to stop by a signal: what runs ends or comes again, and nothing is lost or doubled."""

import contextlib
import os
import signal
import subprocess
import sys

import dramatiq
import pytest
from dramatiq.brokers.redis import RedisBroker

from onceward import Once
from places import SOURCES, SUPPORT
from servers.orphans import watched
from waiting import until

PATIENCE = 120  # seconds


@pytest.fixture
def start(redis, tmp_path):
    """Start a worker of Dramatiq by its own command."""
    begun = []
    paths = {"PYTHONPATH": f"{SOURCES}:{SUPPORT}:{SUPPORT / 'workers'}"}
    environment = os.environ | paths | {"SIGNALLED_PLACE": str(tmp_path), "SIGNALLED_REDIS": redis.url}
    command = [sys.executable, "-m", "dramatiq", "signalled_queues", "-p", "1", "-t", "1", "--skip-logging"]

    def started():
        with (tmp_path / "log").open("ab") as log:
            process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, cwd=tmp_path, start_new_session=True
            )
        begun.append(watched(process))
        return process

    yield started
    for process in begun:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also its workers, which would outlive it
        process.wait()


def test_a_dramatiq_worker_that_is_told_to_stop_loses_no_message(redis, start, tmp_path):
    said = lambda: (tmp_path / "log").read_text()[-3000:]
    begun = lambda: (tmp_path / "begun").read_text().splitlines() if (tmp_path / "begun").exists() else []
    broker = RedisBroker(url=redis.url, namespace=f"signalled-{tmp_path.name}")
    broker.declare_queue("default")
    broker.enqueue(dramatiq.Message("default", "run", (42,), {}, {}))
    first = start()
    until(begun, told=said)
    first.terminate()
    assert first.wait(PATIENCE) is not None
    assert not (tmp_path / "done").exists()
    start()
    until((tmp_path / "done").exists, told=said)
    once = Once(f"sqlite:///{tmp_path / 'ledger.db'}")
    until(lambda: [record.status for record, _ in once.ledger.records()] == ["COMPLETED"], told=said)
    once.close()
    assert len(begun()) == 2
