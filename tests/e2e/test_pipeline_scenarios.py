"""The scenarios of examples/pipelines, by the command and on a real server: what the files promise is what happens."""

import collections
import contextlib
import http.server
import json
import os
import subprocess
import sys
import threading
import uuid

import pytest
from typer.testing import CliRunner

from onceward import Once
from onceward.cli.app import command_line
from places import EXAMPLES, SOURCES
from servers.orphans import watched
from servers.redis import Redis
from waiting import until

PATIENCE = 240
FILES = sorted((EXAMPLES / "pipelines").glob("*.yaml"))


class Place:
    """A stream, an output and a ledger for a pipeline."""

    def __init__(self, folder, server):
        self.server, self.stream = server, f"orders-{uuid.uuid4().hex[:8]}"
        self.ledger, self.log = f"sqlite:///{folder}/ledger.db", folder / "log"
        self._out = folder / "out.ndjson"

    @contextlib.contextmanager
    def running(self, name, **given):
        """Run a pipeline, and stop it at the end."""
        command = [sys.executable, "-m", "onceward", "run", str(EXAMPLES / "pipelines" / f"{name}.yaml")]
        given |= {"LEDGER": self.ledger, "OUT": str(self._out), "PYTHONPATH": str(SOURCES)}
        given |= {"ORDERS_STREAM": self.stream, "REDIS_URL": self.server.url}
        with self.log.open("ab") as log:
            process = watched(subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **given}))
        try:
            yield
        finally:
            process.terminate()
            assert process.wait(PATIENCE) == 0, self.log.read_text()

    def send(self, *orders):
        with self.server.client() as client:
            for order in orders:
                client.xadd(self.stream, {"__data__": json.dumps({"data": json.dumps({"id": order})})})

    def written(self):
        """Return the first line of the output, as soon as it is there."""
        return json.loads(until(lambda: self._out.exists() and self._out.read_text(), PATIENCE, self.log.read_text))


@pytest.fixture(scope="module")
def server():
    """A Redis server that keeps its streams."""
    made = Redis(appendonly="yes")
    yield made
    made.stop()


@pytest.fixture
def place(tmp_path, server):
    return Place(tmp_path, server)


@pytest.fixture
def reports():
    """A server of reports, which are ready the third time; it counts its requests by path."""
    asked = collections.Counter()

    class Reports(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked[self.path] += 1
            body = json.dumps({"status": "ready" if asked[self.path] >= 3 else "pending"}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        log_message = print

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Reports) as server:
        server.asked = asked
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.sampled(file=1)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_scenario_has_no_mistake_and_does_what_its_examples_say(file, tmp_path, monkeypatch):
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    monkeypatch.setenv("AUDIT", str(tmp_path / "audit"))
    for command in ("vet", "test"):
        done = CliRunner().invoke(command_line(), [command, str(file)])
        assert done.exit_code == 0, done.output


def test_retry_a_step(place, reports):
    place.send("r-1", "r-1")
    with place.running("retry-a-step", REPORTS=f"http://127.0.0.1:{reports.server_port}"):
        assert place.written() == {"id": "r-1", "report": {"status": "ready"}}
        until(lambda: place.server.ask("XPENDING", place.stream, "orders-retry").find("'pending': 0") > 0)
    assert reports.asked == {"/reports/r-1": 3}


@pytest.mark.nightly
def test_backpressure(place):
    once = Once(place.ledger)
    held = once.acquire("database", name="maintenance", lease=600.0)
    with place.running("backpressure"):
        place.send("o-1")
        until(lambda: "holds all input" in place.log.read_text())
        assert once.ledger.stats()["COMPLETED"] == 0
        held.complete(None)
        assert place.written() == {"id": "o-1"}
    once.close()
