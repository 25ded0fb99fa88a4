"""The worker under fire: processes killed every second, and the queue and the ledger restarted in the middle."""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from onceward import Once
from places import SOURCES, WORKERS
from servers import Dynoxide, Ministack

MESSAGES = 10_000
CREW = 3
LIMIT = 300.0  # seconds, on two slow cores that others use, too; 40 where nobody does
SCRIPT = WORKERS / "sqs_fire.py"


@pytest.fixture
def ledger(tmp_path):
    """A DynamoDB that keeps its tables over a kill."""
    server = Dynoxide(tmp_path / "dynamodb")
    yield server
    server.stop()


@pytest.fixture
def queues(tmp_path):
    """A queue server that keeps its messages over a restart."""
    server = Ministack("sqs", folder=tmp_path / "sqs")
    yield server
    server.stop()


class Crew:
    """Worker processes; what they say of their outcomes goes to one file."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.kills = 0
        self._log = log.open("ab")
        self._command = [sys.executable, str(SCRIPT), *arguments]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        nobody = {"AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": "not-a-secret", "AWS_REGION": "eu-west-1"}
        self._environment = environment | nobody | {"PYTHONPATH": str(SOURCES), "PYTHONWARNINGS": "error"}
        self._processes = [self._started() for _ in range(CREW)]

    def _started(self) -> subprocess.Popen:
        return subprocess.Popen(self._command, stdout=self._log, stderr=subprocess.DEVNULL, env=self._environment)

    def kill_one(self) -> None:
        """Kill one, whatever it is at, and start another; those that could not start while a server was away, too."""
        victim = random.randrange(CREW)
        self._processes[victim].kill()
        self.kills += 1
        for number, process in enumerate(self._processes):
            if number == victim or process.poll() is not None:
                process.wait()
                self._processes[number] = self._started()

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        self._log.close()


def test_under_fire_each_of_ten_thousand_messages_takes_effect_once(ledger, queues, aws, tmp_path):
    table = ledger.table("ledger")
    effects = ledger.table("effects", {"id": "S"})
    queue = queues.queue("orders")
    for first in range(0, MESSAGES, 10):
        entries = [{"Id": str(n), "MessageBody": json.dumps({"id": n})} for n in range(first, first + 10)]
        assert not queues.ask("AmazonSQS.SendMessageBatch", QueueUrl=queue, Entries=entries).get("Failed")

    url = f"dynamodb://{table}?endpoint={ledger.url}"
    crew = Crew(tmp_path / "outcomes", url, queue, effects)
    disasters = [(MESSAGES * 2 // 3, queues.restart), (MESSAGES // 3, lambda: (ledger.stop(), ledger.start()))]
    began = time.monotonic()
    try:
        while (left := queues.left(queue)) and time.monotonic() - began < LIMIT:
            if disasters and left < disasters[0][0]:
                disasters.pop(0)[1]()
            time.sleep(1.0)
            crew.kill_one()
    finally:
        crew.stop()
    took = time.monotonic() - began

    told = Counter((tmp_path / "outcomes").read_text().split())
    print(f"{took:.0f} s, {crew.kills} kills, {dict(told)}")
    assert left == 0, f"{left} messages are left after {took:.0f} s"
    assert not disasters
    assert crew.kills >= 10
    counts = Counter(item["n"]["N"] for item in ledger.items(effects))
    assert counts == {"1": MESSAGES}, f"{counts}: each shall take effect once, none be lost, none doubled"
    once = Once(url)
    assert once.ledger.stats()["COMPLETED"] == MESSAGES
    once.close()
