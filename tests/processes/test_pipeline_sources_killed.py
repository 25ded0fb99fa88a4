"""A pipeline's process is killed in the middle of its messages. Nothing is lost, and what is done is not done again."""

import contextlib
import json
import subprocess
import sys
import uuid
from collections import Counter

import httpx

from onceward import Once
from places import WORKERS
from queues.shops import NatsShop
from servers.orphans import watched
from waiting import until

PATIENCE = 240
MESSAGES, CONCURRENCY = 40, 4
LEASE = 3.0
SHOP = """
import os, time

def write(line):
    journal = os.open(JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(journal, f"{line}\\n".encode())
    os.close(journal)

def charge(message):
    time.sleep(0.05)
    write(message["id"])

def hang(message):
    write("begun")
    time.sleep(600)
"""


class Place:
    """A pipeline in a folder, and its processes."""

    def __init__(self, folder, source, name, function="charge"):
        self.journal, self.ledger = folder / "journal", f"sqlite:///{folder}/ledger.db"
        self._folder = folder
        module = f"shop_{uuid.uuid4().hex}"
        (folder / f"{module}.py").write_text(f"JOURNAL = {str(self.journal)!r}\n{SHOP}")
        self._text = (
            f"name: {name}\nledger: {self.ledger}\nguard: {{key: message.id, lease: {LEASE}}}\nconcurrency: {CONCURRENCY}\n"
            f"backoff: {{first: 0.2, longest: 2}}\nsource: {json.dumps(source)}\n"
            f"steps:\n  - name: charge\n    call: {{function: '{module}:FUNCTION'}}\n"
        )
        self.write(function)

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

    def end(self, process):
        process.terminate()
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0

    @property
    def made(self):
        """How often the effect of each message was made."""
        with contextlib.suppress(FileNotFoundError):
            return Counter(self.journal.read_text().split())
        return Counter()


def test_a_queues_messages_survive_kills_of_the_pipeline(nats, tmp_path):
    name, queue = f"shop-{uuid.uuid4().hex[:8]}", NatsShop(nats)
    queue.consumer(durable_name=name, ack_wait=5.0)  # what a killed process held comes again soon
    shop = Place(tmp_path, {"nats": {"subject": queue.orders, "url": queue.url}}, name)
    queue.publish(*[{"id": f"o-{number}"} for number in range(MESSAGES)])
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
    assert shop.made.total() - MESSAGES <= 2 * CONCURRENCY  # only those that were under way at a kill
    assert set(shop.made) == {f"o-{number}" for number in range(MESSAGES)}


def test_accepted_webhooks_survive_a_kill_and_are_not_delivered_again(tmp_path):
    shop = Place(tmp_path, {"webhook": {"token": "t0ken", "port": 0}}, "shop", function="hang")
    process = shop.start()
    for number in range(6):
        headers = {"Authorization": "Bearer t0ken", "Idempotency-Key": f"e-{number}"}
        place = f"http://127.0.0.1:{process.said}/"
        assert httpx.post(place, json={"id": f"o-{number}"}, headers=headers, timeout=60).status_code == 202
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
