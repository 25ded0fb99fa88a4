"""A request whose end can be read in two ways is refused by every program that serves, and nothing after it is taken."""

import contextlib
import re
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from orphans import watched
from servers import free_port

HEAD = b"POST /ok HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: \"k\"\r\n"
NEXT = b"GET /evil HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CASES = {
    "both headers": HEAD + CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n",
    "both headers, the length first": HEAD + b"Content-Length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "the same length twice": HEAD + b"Content-Length: 1\r\ncontent-length: 1\r\n\r\na",
    "a list of lengths": HEAD + b"Content-Length: 1, 1\r\n\r\na",
    "a length that is no number": HEAD + b"Content-Length: +1\r\n\r\na",
    "a header that goes on in the next line": HEAD + b"X-Long: a\r\n Content-Length: 3\r\n\r\n",
    "a header name with a space": HEAD + b"Content-Length : 3\r\n\r\nabc",
    "bad chunk sizes": HEAD + CHUNKED + b"\r\nzz\r\nabc\r\n0\r\n\r\n",
    "a negative chunk size": HEAD + CHUNKED + b"\r\n-1\r\n\r\n",
    "a chunk longer than its size": HEAD + CHUNKED + b"\r\n1\r\nabc\r\n0\r\n\r\n",
    "another coding": HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a bare LF after a header": HEAD + b"Content-Length: 0\n\r\n",
    "a bare LF at the end of the head": HEAD + b"Content-Length: 0\r\n\n",
    "only bare LFs": HEAD.replace(b"\r\n", b"\n") + b"\n",
    "a bare CR in a header": HEAD + b"X-Odd: a\rb\r\n\r\n",
    "HTTP/1.0 with chunks": HEAD.replace(b"1.1", b"1.0") + CHUNKED + b"\r\n0\r\n\r\n",
    "a body longer than its length": HEAD + b"Content-Length: 3\r\n\r\nabcdef\r\n\r\n",
}


class Upstream(BaseHTTPRequestHandler):
    """Notes the paths that arrive."""

    protocol_version = "HTTP/1.1"

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.paths.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST = answer  # noqa: N815 - names of http.server

    def log_message(self, *_):
        """Say nothing."""


@contextlib.contextmanager
def running(*command):
    """Give the port of a program."""
    process = watched(subprocess.Popen([sys.executable, "-m", "onceward", *command], stderr=subprocess.PIPE, text=True))
    with process.stderr:
        try:
            yield next(int(found[1]) for line in process.stderr if (found := re.search(r"//127.0.0.1:(\d+)", line)))
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def upstream():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    server.paths = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module", params=["proxy", "serve", "dashboard"])
def port(request, upstream, tmp_path_factory):
    place = ("--store", f"sqlite:///{tmp_path_factory.mktemp('framing')}/ledger.db", "--port", str(free_port()))
    address = f"http://127.0.0.1:{upstream.server_port}"
    command = {
        "proxy": ("proxy", "--upstream", address, "--scope", "everybody", "--name", "api", *place),
        "serve": ("serve", *place),
        "dashboard": ("dashboard", *place),
    }[request.param]
    subprocess.run([sys.executable, "-m", "onceward", "init", *place[:2]], check=True, capture_output=True)
    with running(*command) as port:
        yield port


def answers(port, *parts):
    """Return all that a program answers to bytes, until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        data = b""
        with contextlib.suppress(ConnectionError):  # it need not take what follows a refusal
            for part in parts:
                connection.sendall(part)
            while received := connection.recv(65536):
                data += received
    return re.findall(rb"HTTP/1\.1 (\d+)", data)


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_taken_after_a_refusal(port, case, upstream):
    upstream.paths.clear()
    found = answers(port, CASES[case] + NEXT)
    assert found[-1] == b"400" or (found, case) == ([b"501"], "another coding")
    assert len(found) <= 1 + (case == "a body longer than its length")
    assert "/evil" not in upstream.paths


def test_a_line_of_a_chunk_that_never_ends_is_refused(port, upstream):
    upstream.paths.clear()
    found = answers(port, HEAD + CHUNKED + b"\r\n1;" + b"x" * (1 << 18))
    assert found in ([b"400"], [])
    assert upstream.paths == []
