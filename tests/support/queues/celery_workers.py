"""Celery workers as processes of their own, and a client that sends them tasks; the tasks are in workers/celery_shop.py."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path

from celery import Celery
from kombu import Exchange, Queue

from onceward import NotFound, Once
from places import SOURCES, SUPPORT, WORKERS
from servers.orphans import watched
from waiting import until

PATIENCE = 120.0  # seconds that anything may take on a slow machine


def queue_settings(
    name: str, arguments: dict[str, object], binding: str | None = None, other: str | None = None
) -> dict[str, object]:
    """Return the settings of an application with one queue or two, which quorum queues can delay."""

    def queue(name: str, key: str) -> Queue:
        return Queue(name, Exchange(name, type="topic"), routing_key=key, queue_arguments=arguments)

    queues = [queue(name, binding or name), *([queue(other, other)] if other else [])]
    default = {"queue": name, "exchange": name, "exchange_type": "topic", "routing_key": name}
    return {"task_queues": queues, **{f"task_default_{part}": told for part, told in default.items()}}


class Shop:
    """The broker's client, the ledger and the workers of the application of celery_shop.py."""

    def __init__(
        self, broker: str, folder: Path, *, ledger: str | None = None, backend: str | None = None, **more: object
    ) -> None:
        self.folder = folder
        self.ledger = ledger or f"sqlite:///{folder}/ledger.db?timeout=30"
        given = {"broker": broker, "backend": backend or broker, "ledger": self.ledger, "folder": str(folder), **more}
        paths = f"{SOURCES}:{SUPPORT}:{WORKERS}"
        self.environment = {**os.environ, "PYTHONPATH": paths, "ONCEWARD_SHOP": json.dumps(given)}
        self.client = Celery("client", broker=broker, backend=given["backend"])
        if "queue" in more:
            self.client.conf.update(queue_settings(**more["queue"]))
        self.once = Once(self.ledger)
        self._started: list[subprocess.Popen] = []

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def start(self, *options: object, program: str = "worker") -> subprocess.Popen:
        """Start a worker, or beat, and wait until it is ready."""
        before = self.log.count(" ready.") if (self.folder / "log").exists() else 0
        command = [sys.executable, "-m", "celery", "-A", "celery_shop", program, "-l", "INFO", *map(str, options)]
        if program == "worker":
            command += ["-n", f"{uuid.uuid4().hex}@%h", "--without-gossip", "--without-mingle"]
        with (self.folder / "log").open("ab") as log:
            place = {"env": self.environment, "cwd": self.folder, "start_new_session": True}
            process = subprocess.Popen(command, stdout=log, stderr=log, **place)
        self._started.append(watched(process))
        if program == "worker":
            self.until(lambda: self.log.count(" ready.") > before)
        return process

    def stop(self) -> None:
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
        self._started.clear()
        self.once.close()
        self.client.close()

    def send(self, name: str, *args: object, **options: object):
        return self.client.send_task(f"shop.{name}", args, **options)

    def get(self, result):
        return result.get(timeout=PATIENCE, interval=0.05)

    def journal(self) -> Counter:
        path = self.folder / "journal"
        return Counter(path.read_text().splitlines() if path.exists() else [])

    def open(self, name: str = "open") -> None:
        """Let the tasks that wait go on."""
        (self.folder / name).touch()

    def record(self, name: str, key: str):
        try:
            return self.once.ledger.show(f"shop.{name}:{key}")[0]
        except NotFound:
            return None

    def status(self, name: str, key: str) -> str | None:
        record = self.record(name, key)
        return record and record.status

    def until(self, holds) -> None:
        told = lambda: f"{self.journal()}; {self.log[-6000:]}"
        until(lambda: holds() or any(process.poll() for process in self._started), PATIENCE, told)
        assert holds(), told()
