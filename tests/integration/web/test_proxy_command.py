"""``onceward proxy`` as a process: what its server and it make of raw requests, and how it stops."""

import contextlib
import http.server
import socket
import threading
import time

import pytest

from onceward import Once
from onceward.core.record import COMPLETED
from tables import each
from web.servers import keyed, serving


class Upstream(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.server.seen.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        time.sleep(self.server.pause)
        self.send_response(201)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_PUT = do_POST

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_): ...


@pytest.fixture
def upstream():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream) as server:
        server.seen, server.pause, server.daemon_threads = [], 0.0, True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def proxied(upstream, tmp_path, *options, **environment):
    command = (
        f"onceward proxy --upstream http://127.0.0.1:{upstream.server_port} --name http --scope everybody --port PORT"
    )
    with serving(*command.split(), *options, "--store", f"sqlite:///{tmp_path}/ledger.db", **environment) as server:
        yield server


def raw(server, request):
    """Send bytes, and return what comes until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        said = b""
        while part := connection.recv(65536):
            said += part
        return said


@each(
    "request_",
    [
        b"PUT /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"PUT /a HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: 0\r\n\r\n",
        b"PUT /a\x00b HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
        b"PUT /a HTTP/1.1\r\nHost: a\r\nX: a\r\n\x00b\r\nContent-Length: 0\r\n\r\n",
        b"PUT /x/../a HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
)
def test_a_raw_request_that_is_ambiguous_reaches_nobody(upstream, tmp_path, request_):
    with proxied(upstream, tmp_path) as server:
        assert raw(server, request_).split(b" ")[1] in {b"400", b"501"}
        assert upstream.seen == []


def test_a_proxy_told_to_stop_finishes_the_request_under_way(upstream, tmp_path):
    upstream.pause = 1.0
    with proxied(upstream, tmp_path) as server:
        with pytest.raises(TimeoutError):
            server.post("/orders", b"{}", keyed("k"), 0.5)
        while not upstream.seen:
            time.sleep(0.05)
        server.process.terminate()
        server.process.wait(60)
    (record,) = (record for record, _ in Once(f"sqlite:///{tmp_path}/ledger.db").ledger.records())
    assert record.status == COMPLETED
