"""The examples of docs/reference/outbox.md run as they are printed."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from onceward.outbox import sender
from places import DOCS

TEXT = (DOCS / "reference" / "outbox.md").read_text(encoding="utf-8")


@pytest.fixture
def hooks():
    """A server that keeps what is posted."""
    posted = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", posted
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_examples_send_what_they_say(hooks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url, posted = hooks
    text = re.sub(r"https://\w+\.example", url, TEXT)
    space = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, space)
    assert sender.SENDER.drain(20) == 0
    orders = [body["order"] for path, body in posted if path == "/orders"]
    assert sorted(orders) == [7, 7, 8]
    assert [body["to"] for path, body in posted if path == "/send"] == ["a@example.com", "b@example.com"]
    assert list(space["once"].ledger.records(status=["UNSENT", "REFUSED"])) == []
    space["connection"].close()
    space["once"].close()
