"""Web servers that are processes of their own, and clients that pay at the example services until they have their receipt."""

import collections
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from onceward import Once
from onceward.core.record import COMPLETED
from places import EXAMPLES, SOURCES, WORKERS
from servers.needs import free_port, listens
from servers.orphans import watched
from waiting import until

PATIENCE = 120.0  # seconds that one client may need until its payment is through


class WebServer:
    """A server of a module among the examples or the tests' workers, as ``command`` starts it; PORT stands for its port."""

    def __init__(self, *command, **environment):
        self.port = free_port()
        self._command = [sys.executable, "-m", *(part.replace("PORT", str(self.port)) for part in command)]
        paths = [SOURCES, EXAMPLES, WORKERS]
        self._environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), **environment}
        self.start()

    def start(self):
        # A session of its own, so that its workers can be killed with it.
        options = {"start_new_session": True, "stdout": subprocess.DEVNULL}
        self.process = watched(subprocess.Popen(self._command, env=self._environment, **options))
        if not listens(self.port, self.process):
            self.kill()
            pytest.fail("the server did not start")
        with self.connection(60) as connection:  # its master listens before its workers do
            connection.request("GET", "/")
            connection.getresponse().read()

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        until(lambda: not self.is_there())  # its workers hold the port as well, until they are gone

    def is_there(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def workers(self):
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [
            pid for pid in map(int, children) if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]

    @contextlib.contextmanager
    def connection(self, timeout=30):
        made = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            yield made
        finally:
            made.close()

    def post(self, path, content=b"", headers=(), timeout=30, **how):
        with self.connection(timeout) as connection:
            connection.request("POST", path, content, dict(headers), **how)
            reply = connection.getresponse()
            return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()


@contextlib.contextmanager
def serving(*command, **environment):
    server = WebServer(*command, **environment)
    try:
        yield server
    finally:
        server.kill()


def gunicorn(module, *options, **environment):
    # A worker of gunicorn's that is killed is replaced when the master looks, which is each second.
    quiet = ("--log-level", "critical", "--no-control-socket")
    return serving("gunicorn", "--bind", "127.0.0.1:PORT", *quiet, *options, module, **environment)


def uvicorn(module, *options, **environment):
    return serving("uvicorn", "--port", "PORT", "--log-level", "critical", *options, module, **environment)


def payment(order):
    return json.dumps({"order": order, "amount": 5, "currency": "EUR"})


def keyed(key):
    return {"Idempotency-Key": f'"{key}"', "Content-Type": "application/json"}


def pay(server, key, order, timeout, seen):
    """Send a payment again and again, as clients do, until it is answered; return the receipt."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            status, fields, body = server.post("/payments", payment(order), keyed(key), timeout)
        except TimeoutError:
            seen["timeout"] += 1
        except (OSError, http.client.HTTPException):
            seen["broken"] += 1
            time.sleep(0.1)
        else:
            seen["replayed" if "idempotent-replayed" in fields else status] += 1
            if status == 201:
                return body
            assert (status, json.loads(body)["type"].partition("#")[2]) == (409, "in-flight")
            time.sleep(0.2)
    pytest.fail(f"{key} did not come through: {seen}")


def pay_all(server, count, timeout, disturb):
    """Have two clients each pay ``count`` orders, while ``disturb`` runs again and again; return what the clients saw."""
    seen = collections.Counter()
    with ThreadPoolExecutor(16) as pool:
        orders = [number for number in range(count) for _ in range(2)]
        pending = [pool.submit(pay, server, f"key-{n}", f"order-{n}", timeout, seen) for n in orders]
        while not all(one.done() for one in pending):
            disturb()
        receipts = [one.result() for one in pending]
    for number in range(count):
        first, second = receipts[2 * number : 2 * number + 2]
        assert first == second
        assert json.loads(first)["order"] == f"order-{number}"
    return seen


def check_charged_once(url, references, count):
    assert collections.Counter(references()) == {f"order-{number}": 1 for number in range(count)}
    records = [record for record, _ in Once(url).ledger.records()]
    assert {record.key: record.status for record in records if record.status != COMPLETED} == {}
    assert len(records) == count
    return records
