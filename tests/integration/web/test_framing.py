"""Requests whose end two readers can see in two places: each command that serves refuses them, and reads no further."""

import contextlib
import re
import socket
import subprocess
import sys

import pytest

from tables import each
from web.servers import serving

pytestmark = pytest.mark.sampled(server=1)

HEAD = b"POST /a HTTP/1.1\r\nHost: localhost\r\n"
NEXT = b"GET /next HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
REFUSED = {
    "both headers": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both headers, the other way round": HEAD + b"Transfer-Encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "one length twice": HEAD + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a list of lengths": HEAD + b"Content-Length: 3, 3\r\n\r\nabc",
    "a folded line": HEAD + b"X-A: b\r\n c\r\nContent-Length: 0\r\n\r\n",
    "a bare LF in the head": HEAD + b"X-A: b\nContent-Length: 0\r\n\r\n",
    "a bare LF at its end": HEAD + b"Content-Length: 0\n\n",
    "chunks in HTTP/1.0": CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + b"0\r\n\r\n",
    "a chunk of a negative size": CHUNKED + b"-1\r\nabc\r\n0\r\n\r\n",
    "a chunk longer than its size": CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n",
    "a bare LF after a size": CHUNKED + b"3\nabc\r\n0\r\n\r\n",
    "a bare CR in an extension": CHUNKED + b"3;a\rb\r\nabc\r\n0\r\n\r\n",
    "a bare LF after the last chunk": CHUNKED + b"3\r\nabc\r\n0\r\n\n",
    "a folded trailer": CHUNKED + b"0\r\nX-A: b\r\n c\r\n\r\n",
    "an extension without an end": CHUNKED + b"3;" + 70_000 * b"a",
}


@pytest.fixture(scope="module")
def upstream():
    """A listener that nobody may connect to."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        yield listener


@pytest.fixture(scope="module", params=["proxy", "serve", "dashboard"])
def server(request, tmp_path_factory, upstream):
    store = f"sqlite:///{tmp_path_factory.mktemp('framing')}/ledger.db"
    subprocess.run([sys.executable, "-m", "onceward", "init", "--store", store], check=True)
    options = f"--upstream http://127.0.0.1:{upstream.getsockname()[1]} --name http --health / --scope everybody"
    more = options.split() if request.param == "proxy" else []
    with serving("onceward", request.param, "--store", store, "--port", "PORT", *more) as running:
        yield running


def answers(server, request):
    """Send bytes, and return the statuses that come until the server closes the connection, as it must."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        said = b""
        with contextlib.suppress(ConnectionError):  # it may close while more is on its way
            connection.sendall(request)
            while part := connection.recv(65536):
                said += part
        return re.findall(rb"HTTP/1\.1 (\d+) ", said)


@each("case", REFUSED)
def test_a_request_with_two_ends_is_refused_and_ends_its_connection(server, upstream, case):
    assert answers(server, REFUSED[case] + 2 * NEXT) == [b"400"]
    with pytest.raises(BlockingIOError):
        upstream.accept()


def test_what_follows_a_length_is_a_request_or_ends_the_connection(server):
    known = b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n"
    first, second = answers(server, known + b"evil and more\r\n\r\n" + NEXT)
    assert first != second == b"400"
