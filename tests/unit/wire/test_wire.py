"""Both wires against servers that behave oddly: what is answered, what is sent again, and what is an error."""

import asyncio
import contextlib
import email.utils
import os
import random
import re
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.errors import StoreError
from onceward.stores.dynamodb.requests import DYNAMODB
from onceward.wire import connections, http1, http_calls, nonblocking
from onceward.wire.calls import Call, ObjectCall
from onceward.wire.credentials import CredentialSource
from onceward.wire.endpoints import Endpoints, Origin, check_direct
from onceward.wire.nonblocking import AsyncHttpWire
from onceward.wire.sockets import HttpWire
from servers.needs import needs
from tables import each

pytestmark = pytest.mark.sampled(carrier=1)

DATE = "Fri, 21 Nov 2025 13:16:00 GMT"
CALL = Call(DYNAMODB, "PutItem", {"TableName": "t", "Item": {"key": {"S": "k"}, "result": {"B": b"\x00\xff"}}})
SECRET, TOKEN = "this-is-the-secret-key", "this-is-the-session-token"


def answer(body=b"{}", status="200 OK", headers=(), length=True):
    own = "Content-Type: application/x-amz-json-1.0"
    lines = [
        f"HTTP/1.1 {status}",
        f"Date: {DATE}",
        own,
        *headers,
        *([f"Content-Length: {len(body)}"] if length else []),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Server:
    """Listens, and gives each connection in turn to a function of its own, in a thread of its own."""

    def __init__(self, *scripts, tls=None):
        self.scripts, self.connections, self.requests, self.tls = scripts, 0, [], tls
        self.ended = threading.Semaphore(0)  # released when a connection is over
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port = self.listening.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self.threads = []

    def __enter__(self):
        self.accepting = threading.Thread(target=self.accept)
        self.accepting.start()
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        self.accepting.join()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()

    def accept(self):
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            script = self.scripts[min(self.connections, len(self.scripts) - 1)]
            self.connections += 1
            self.threads.append(threading.Thread(target=self.run, args=(connection, script)))
            self.threads[-1].start()

    def run(self, connection, script):
        connection.settimeout(10)
        with contextlib.suppress(OSError), connection:
            if self.tls:
                connection = self.tls.wrap_socket(connection, server_side=True)
            with connection:
                script(self, connection)
        self.ended.release()

    def request(self, connection):
        """Read one request; returns its head and content, or None at the end of the connection."""
        data = b""
        while b"\r\n\r\n" not in data:
            more = connection.recv(65536)
            if not more:
                return None
            data += more
        head, _, content = data.partition(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", head.lower())[1])
        content = bytearray(content)
        while len(content) < length:
            content += connection.recv(1 << 20)
        content = bytes(content)
        self.requests.append((head.decode(), content))
        return head, content


def serve(*answers):
    """Answer each request with the next of the answers (the last one for ever); parts of one are sent one by one."""

    def script(server, connection):
        for number in range(10**9):
            if server.request(connection) is None:
                return
            one = answers[min(number, len(answers) - 1)]
            for part in [one] if isinstance(one, bytes) else one:
                connection.sendall(part)
                if not isinstance(one, bytes):
                    time.sleep(0.002)

    return script


def once(*parts):
    """Answer one request and close the connection."""

    def script(server, connection):
        server.request(connection)
        for part in parts:
            connection.sendall(part)

    return script


def reset(connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


class Carrier:
    """One of the two wires, called by blocking."""

    def __init__(self, kind):
        self.kind, self.open = kind, []

    def wire(self, url, **options):
        endpoints = Endpoints("eu-west-1", dynamodb=url, s3=url)
        made = (HttpWire if self.kind == "sync" else AsyncHttpWire)(endpoints, CredentialSource(), **options)
        self.runner = asyncio.Runner() if self.kind == "async" else None
        self.open.append((made, self.runner))
        return made

    def send(self, made, call=CALL, at=1e9):
        return made.send(call, at) if self.runner is None else self.runner.run(made.send(call, at))

    def pause(self):
        """Let the event loop see what has happened to its connections."""
        if self.runner is not None:
            self.runner.run(asyncio.sleep(0.01))

    def close(self):
        for made, runner in self.open:
            made.close()
            if runner is not None:
                runner.close()


@pytest.fixture(params=["sync", "async"])
def carrier(request):
    made = Carrier(request.param)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)


# --- what is sent and answered ----------------------------------------------------------------------------------------


def test_an_answer_has_the_status_the_document_date_and_times_around_it(carrier):
    with Server(serve(answer(b'{"Item": {"n": {"N": "1"}}}'), answer(b'{"__type": "x#Y"}', "400 Bad"))) as server:
        ticks = iter(range(100))
        made = carrier.wire(server.url, clock=lambda: float(next(ticks)))
        got = carrier.send(made)
        assert got[:3] == (200, {"Item": {"n": {"N": "1"}}}, email.utils.parsedate_to_datetime(DATE).timestamp())
        assert (got.sent, got.received) == (0.0, 1.0)
        assert carrier.send(made)[:2] == (400, {"__type": "x#Y"})
        carrier.close()
    head, content = server.requests[0]
    assert head.startswith("POST / HTTP/1.1\r\n")
    assert f"\r\nx-amz-security-token: {TOKEN}\r\n" in head
    assert content == b'{"TableName":"t","Item":{"key":{"S":"k"},"result":{"B":"AP8="}}}'


@pytest.mark.parametrize(
    ("headers", "own"),
    [
        (["Content-Type: application/x-amz-json-1.0"], True),
        (["X-Amzn-RequestId: 4KBNVRGD25RG1KEO9UT4V3FQDJVV4KQNSO5AEMVJF66Q9ASUAAJG"], True),
        (["Content-Type: application/xml", "x-amz-request-id: 318BC8BC148832E5"], True),
        (["Content-Type: text/html", "Server: nginx"], False),
        (["Content-Type: application/json", "X-Amz-Cf-Id: of-a-proxy"], False),
        ([], False),
    ],
)
def test_only_an_answer_of_the_services_own_tells_its_time(carrier, headers, own):
    lines = ["HTTP/1.1 503 Service Unavailable", f"Date: {DATE}", *headers, "Content-Length: 2"]
    with Server(serve("\r\n".join(lines).encode() + b"\r\n\r\n{}")) as server:
        got = carrier.send(carrier.wire(server.url))
        carrier.close()
    assert (got.date is not None) == own


def test_a_connection_carries_one_request_after_the_other(carrier):
    with Server(serve(answer())) as server:
        made = carrier.wire(server.url)
        for _ in range(5):
            carrier.send(made)
        carrier.close()
    assert (server.connections, len(server.requests)) == (1, 5)


@pytest.mark.parametrize(
    ("parts", "body", "kept"),
    [
        ([answer(b'{"a":1}')[:20], answer(b'{"a":1}')[20:-3], answer(b'{"a":1}')[-3:]], {"a": 1}, True),
        ([b"HTTP/1.1 100 Continue\r\n\r\n" + answer(b"{}")], {}, True),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", answer(b"{}")], {}, True),
        ([answer(b'{"a":1}', headers=["Connection: close"])], {"a": 1}, False),
        ([b'HTTP/1.0 200 OK\r\nContent-Length: 7\r\n\r\n{"a":1}'], {"a": 1}, False),
        ([answer(b'{"a":1}') + b"more than was asked for"], {"a": 1}, False),
        (
            [b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{"a\r\n4;x=y\r\n":1}\r\n0\r\n\r\n'],
            {"a": 1},
            True,
        ),
        (
            [
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                b'0007\r\n{"a',
                b'":1}\r\n0\r\nx: y\r\n',
                b"\r\n",
            ],
            {"a": 1},
            True,
        ),
    ],
)
def test_answers_come_in_many_forms(carrier, parts, body, kept):
    with Server(serve(parts)) as server:
        made = carrier.wire(server.url)
        for _ in range(2):
            assert carrier.send(made).body == body
        carrier.close()
    assert server.connections == (1 if kept else 2)


@pytest.mark.parametrize(
    "end", [[answer(b'{"Item": {"unasked": {"S": "x"}}}')], [b"x"], []], ids=["answer", "byte", "end"]
)
def test_what_comes_unasked_on_a_kept_connection_answers_no_later_request(carrier, end):
    told, said = threading.Event(), threading.Event()

    def script(server, connection):
        server.request(connection)
        connection.sendall(answer(b'{"n":1}'))
        told.wait(60)
        for part in end:
            connection.sendall(part)
        if not end:
            connection.shutdown(socket.SHUT_WR)
        said.set()
        server.request(connection)

    with Server(script, serve(answer(b'{"n":2}'))) as server:
        made = carrier.wire(server.url)
        assert carrier.send(made).body == {"n": 1}
        told.set()
        said.wait(60)
        time.sleep(0.05)  # its event loop, too, has not looked
        assert carrier.send(made).body == {"n": 2}
        carrier.close()
    assert server.connections == 2


@each("size", [b"", b"-1", b"+3", b"0x3", b"1_0", b"3 3", b"g"])
def test_the_size_of_a_chunk_is_a_hexadecimal_number_and_nothing_else(size):
    steps = http1.reply(1000)
    next(steps)
    with pytest.raises(http1.Unreadable):
        steps.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + size + b"\r\nabc\r\n0\r\n\r\n")


def test_an_answer_without_a_length_ends_with_its_connection(carrier):
    with Server(once(answer(b'{"a":', length=False), b"1}")) as server:
        made = carrier.wire(server.url)
        assert carrier.send(made).body == {"a": 1}
        assert carrier.send(made).body == {"a": 1}
    assert server.connections == 2


def test_an_answer_that_has_no_content_ends_with_its_headers(carrier):
    with Server(serve(b"HTTP/1.1 204 No Content\r\n\r\n")) as server:
        made = carrier.wire(server.url)
        for _ in range(2):
            got = carrier.send(made, ObjectCall("PUT", "b", "k", b"x"))
            assert got == (204, b"", None, got.sent, got.received)
        carrier.close()
    assert server.connections == 1


def test_objects_go_to_s3_and_come_back(carrier):
    error = b"<?xml?><Error><Code>NoSuchKey</Code><Message>not there</Message><Key>k</Key></Error>"
    with Server(serve(answer(b""), answer(b"\x00\xff"), answer(error, "404 Not Found"))) as server:
        made = carrier.wire(server.url)
        assert carrier.send(made, ObjectCall("PUT", "b", "a/ö", b"\x00\xff")).status == 200
        assert carrier.send(made, ObjectCall("GET", "b", "a/ö")).body == b"\x00\xff"
        missing = carrier.send(made, ObjectCall("GET", "b", "a/ö"))
        assert missing[:2] == (404, {"__type": "NoSuchKey", "message": "not there"})
        carrier.close()
    assert [head.partition("\r\n")[0] for head, _ in server.requests[:2]] == [
        "PUT /b/a/%C3%B6 HTTP/1.1",
        "GET /b/a/%C3%B6 HTTP/1.1",
    ]
    assert server.requests[0][1] == b"\x00\xff"


def test_a_request_larger_than_what_network_takes_at_once_arrives_whole(carrier):
    content = os.urandom(8_000_000)
    with Server(serve(answer(b""))) as server:
        made = carrier.wire(server.url)
        carrier.send(made, ObjectCall("PUT", "b", "k", content))
        carrier.close()
    assert server.requests[0][1] == content


def test_an_error_that_is_not_json_is_answered_with_its_first_words(carrier):
    page = b"<html>Bad Gateway " + b"x" * 1000
    with Server(
        serve(answer(page, "502 Bad Gateway"), answer(b"", "503 Unavailable"), answer(b"[1]", "500 x"))
    ) as server:
        made = carrier.wire(server.url)
        assert carrier.send(made)[:2] == (502, {"__type": "", "message": page[:200].decode()})
        assert carrier.send(made)[:2] == (503, {"__type": "", "message": ""})
        assert carrier.send(made)[:2] == (500, {"__type": "", "message": "[1]"})
        carrier.close()


def test_a_session_token_that_an_error_quotes_is_not_passed_on(carrier):
    body = f'{{"__type": "InvalidSignatureException", "message": "x-amz-security-token:{TOKEN}"}}'.encode()
    with Server(serve(answer(body, "400 Bad"))) as server:
        assert TOKEN not in str(carrier.send(carrier.wire(server.url)).body)
        carrier.close()


# --- what is sent again -------------------------------------------------------------------------------------------------


def test_a_connection_that_server_closed_while_it_was_idle_is_replaced(carrier):
    with Server(once(answer()), serve(answer(b'{"second": 1}'))) as server:
        made = carrier.wire(server.url)
        carrier.send(made)
        assert server.ended.acquire(timeout=60)
        carrier.pause()
        assert carrier.send(made).body == {"second": 1}
        carrier.close()
    assert server.connections == 2


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 200 OK\r\nConte"])
@pytest.mark.parametrize("end", [socket.socket.close, reset])
def test_a_kept_connection_that_is_closed_during_a_request_is_replaced(carrier, part, end):
    def script(server, connection):
        server.request(connection)
        connection.sendall(answer())
        server.request(connection)
        connection.sendall(part)
        end(connection)

    with Server(script, serve(answer(b'{"second": 1}'))) as server:
        ticks = iter(range(100))
        made = carrier.wire(server.url, clock=lambda: float(next(ticks)))
        carrier.send(made)
        got = carrier.send(made)
        assert got.body == {"second": 1}
        assert got.sent == 2.0  # before the first try, which may have been the one that was carried out
        carrier.close()
    assert len(server.requests) == 3


def test_a_connection_that_was_idle_for_long_is_not_used(carrier, monkeypatch):
    with Server(serve(answer())) as server:
        made = carrier.wire(server.url)
        carrier.send(made)
        monkeypatch.setattr(connections, "IDLE", 0.0)
        carrier.send(made)
        carrier.close()
    assert server.connections == 2


def hasty(server, connection):
    """Answer before the request is there, and read no more of it."""
    connection.recv(100)
    connection.sendall(answer(b"<Error><Code>Denied</Code></Error>", "403 Forbidden"))
    time.sleep(0.05)
    reset(connection)


def test_a_connection_that_breaks_while_sending_is_a_passing_error(carrier):
    with Server(hasty, serve(answer(b""))) as server:
        made = carrier.wire(server.url, timeout=60)
        begun = time.monotonic()
        assert refused(carrier, made, ObjectCall("PUT", "b", "k", bytes(20_000_000))).transient
        assert time.monotonic() - begun < 40  # not the timeout
        assert carrier.send(made, ObjectCall("PUT", "b", "k", b"x")).status == 200
        carrier.close()


# --- what is an error ---------------------------------------------------------------------------------------------------


def refused(carrier, made, call=CALL):
    with pytest.raises(StoreError) as caught:
        carrier.send(made, call)
    text = f"{caught.value!r} {caught.value.__cause__!r}"
    assert SECRET not in text
    assert TOKEN not in text
    assert "Signature" not in text
    return caught.value


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 200 OK\r\nConte", answer(b'{"a": "b"}')[:-3]])
@pytest.mark.parametrize("end", [socket.socket.close, reset])
def test_a_fresh_connection_that_ends_within_the_answer_is_passing_error(carrier, part, end):
    def script(server, connection):
        server.request(connection)
        connection.sendall(part)
        end(connection)

    with Server(script) as server:
        error = refused(carrier, carrier.wire(server.url))
    assert error.transient
    assert isinstance(error.__cause__, ConnectionError)
    assert str(error).startswith(f"PutItem at {server.url}: ")
    assert server.connections == 1


def test_nobody_listening_is_a_passing_error(carrier):
    with Server(serve(answer())) as server:
        pass
    error = refused(carrier, carrier.wire(server.url))
    assert error.transient
    assert str(error).startswith(f"PutItem at {server.url}: ")


def test_a_host_without_an_address_is_a_passing_error_a_bad_name_is_not(carrier):
    assert refused(carrier, carrier.wire("http://nowhere.invalid:1")).transient
    assert not refused(carrier, carrier.wire(f"http://{'a' * 70}.invalid:1")).transient


def slow(server, connection):
    server.request(connection)
    connection.recv(1)


def dripping(server, connection):
    server.request(connection)
    for byte in answer(b" " * 1000):
        connection.sendall(bytes([byte]))
        time.sleep(0.02)


def not_reading(server, connection):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.recv(1)
    time.sleep(0.4)


@pytest.mark.parametrize("script", [slow, dripping, not_reading])
def test_an_answer_that_takes_too_long_is_a_passing_error(carrier, script):
    with Server(script) as server:
        made = carrier.wire(server.url, timeout=0.2)
        begun = time.monotonic()
        error = refused(
            carrier, made, ObjectCall("PUT", "b", "k", bytes(10_000_000)) if script is not_reading else CALL
        )
        assert time.monotonic() - begun > 0.15
        carrier.close()
    assert error.transient
    assert isinstance(error.__cause__, TimeoutError)


def test_a_connection_that_is_not_taken_is_a_passing_error(carrier, monkeypatch):
    monkeypatch.setattr(connections, "CONNECT_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as others:
        port = full.getsockname()[1]
        for _ in range(3):  # the queue of a listener that accepts nobody
            other = others.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(("127.0.0.1", port))
        made = carrier.wire(f"http://127.0.0.1:{port}")
        begun = time.monotonic()
        error = refused(carrier, made)
        assert time.monotonic() - begun > 0.15
    assert error.transient


@pytest.mark.parametrize(
    "parts",
    [
        [b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n258\r\n", b"x" * 600 + b"\r\n258\r\n", b"x" * 600],
        [b"HTTP/1.1 200 OK\r\n\r\n", *[b"x" * 600] * 3],
        [b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2000],
    ],
)
def test_an_answer_over_the_limit_is_a_lasting_error(carrier, parts, monkeypatch):
    monkeypatch.setattr(connections, "LIMIT", 1000)
    with Server(serve(parts)) as server:
        error = refused(carrier, carrier.wire(server.url))
        carrier.close()
    assert not error.transient
    assert "the limit is 1000" in str(error)


def test_an_answer_at_the_limit_is_none(carrier, monkeypatch):
    monkeypatch.setattr(connections, "LIMIT", 1000)
    with Server(serve(answer(b"x" * 1000))) as server:
        assert len(carrier.send(carrier.wire(server.url), ObjectCall("GET", "b", "k")).body) == 1000
        carrier.close()


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
BROKEN = {
    "a chunk's size of 5,000 digits": CHUNKED + b"\r\n" + b"f" * 5000 + b"\r\n{}\r\n0\r\n\r\n",
    "a chunk longer than it says": CHUNKED + b"\r\n2\r\n{} \r\n0\r\n\r\n",
    "an endless trailer": CHUNKED + b"\r\n2\r\n{}\r\n0\r\n" + b"x: y\r\n" * 20_000,
    "two lengths": answer(b"{}", headers=["Content-Length: 1"]),
    "the same length twice": answer(b"{}", headers=["Content-Length: 2"]),
    "a list of lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\n{}",
    "a length and chunks": CHUNKED + b"Content-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "chunks twice": CHUNKED + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "another coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "a length with a plus": b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\n{}",
    "a length with a gap": b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\n{}",
    "a folded header": answer(b"{}", headers=["X: a", " Content-Length: 9"]),
    "a bare line feed": answer(b"{}", headers=["X: a\nContent-Length: 9"]),
    "a bare carriage return": answer(b"{}", headers=["X: a\rb"]),
    "a NUL": answer(b"{}", headers=["X: a\0b"]),
    "a flood of headers": answer(b"{}", headers=["X: y"] * 30_000),
    "interim answers only": b"HTTP/1.1 100 Continue\r\n\r\n" * 5000,
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + answer(b"{}"),
    "a long status": b"HTTP/1.1 2000 OK\r\nContent-Length: 2\r\n\r\n{}",
    "deep JSON": answer(b'{"a":' * 100_000),
    "a huge number": answer(b'{"a":' + b"1" * 5000 + b"}"),
}


@pytest.mark.parametrize(
    "parts",
    [
        [b"SSH-2.0-OpenSSH_9\r\n\r\n"],
        [b"HTTP/1.1 20x OK\r\n\r\n"],
        [b"x" * 40_000, b"x" * 40_000],
        [b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1" * 40_000, b"1" * 40_000],
        [answer(b"{}", headers=[f"x-amz-crc32: {zlib.crc32(b'[]')}"])],
        [answer(b"<html>Sign in to this network")],
        [answer(b"\xff")],
        *([broken] for broken in BROKEN.values()),
    ],
)
def test_an_answer_that_cannot_be_read_is_a_passing_error(carrier, parts):
    with Server(serve(parts)) as server:
        assert refused(carrier, carrier.wire(server.url)).transient
        carrier.close()


def test_a_checksum_that_is_right_is_none(carrier):
    with Server(serve(answer(b"{}", headers=[f"x-amz-crc32: {zlib.crc32(b'{}')}"]))) as server:
        assert carrier.send(carrier.wire(server.url)).body == {}
        carrier.close()


# --- TLS and proxies ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    made = folder / "certificate.pem"
    options = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    names = [
        "-subj",
        "/CN=test",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(folder / "key.pem"),
        "-out",
        str(made),
    ]
    subprocess.run([needs("openssl", "apt-get install openssl"), *options, *names], check=True, capture_output=True)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(made, folder / "key.pem")
    return made, server


def test_a_certificate_that_nobody_vouches_for_is_a_lasting_error(carrier, certificate):
    with Server(serve(answer()), tls=certificate[1]) as server:
        error = refused(carrier, carrier.wire(server.url))
    assert not error.transient
    assert "could not be verified" in str(error)
    assert "AWS_CA_BUNDLE" in str(error)
    assert server.requests == []


def test_a_certificate_for_another_host_is_a_lasting_error(carrier, certificate, monkeypatch):
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate[0]))
    with Server(serve(answer()), tls=certificate[1]) as server:
        error = refused(carrier, carrier.wire(server.url.replace("127.0.0.1", "localhost")))
    assert not error.transient
    assert "localhost" in str(error)
    assert server.requests == []


def test_requests_go_over_tls_with_the_certificates_of_aws_ca_bundle(carrier, certificate, monkeypatch):
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate[0]))
    large = os.urandom(3_000_000)
    with Server(serve(answer(b'{"a":1}'), answer(b""), answer(large)), tls=certificate[1]) as server:
        made = carrier.wire(server.url)
        assert carrier.send(made).body == {"a": 1}
        assert carrier.send(made, ObjectCall("PUT", "b", "k", large)).status == 200
        assert carrier.send(made, ObjectCall("GET", "b", "k")).body == large
        carrier.close()
    assert server.connections == 1
    assert server.requests[1][1] == large


def test_a_bundle_that_cannot_be_read_is_named(carrier, certificate, monkeypatch):
    monkeypatch.setenv("AWS_CA_BUNDLE", "/nowhere/bundle.pem")
    with Server(serve(answer()), tls=certificate[1]) as server:
        error = refused(carrier, carrier.wire(server.url))
    assert not error.transient
    assert "/nowhere/bundle.pem" in str(error)


def test_plain_http_where_tls_is_spoken_is_a_passing_error(carrier, certificate):
    with Server(serve(answer()), tls=certificate[1]) as server:
        assert refused(carrier, carrier.wire(server.url.replace("https", "http"))).transient
    with Server(once(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as server:
        assert refused(carrier, carrier.wire(server.url.replace("http", "https"), timeout=0.2)).transient


@pytest.mark.parametrize(
    ("scheme", "host", "environment", "allowed"),
    [
        ("https", "dynamodb.eu-west-1.amazonaws.com", {}, True),
        ("https", "dynamodb.eu-west-1.amazonaws.com", {"HTTPS_PROXY": "http://p:1"}, False),
        ("https", "dynamodb.eu-west-1.amazonaws.com", {"https_proxy": "http://p:1"}, False),
        ("https", "dynamodb.eu-west-1.amazonaws.com", {"HTTP_PROXY": "http://p:1"}, True),
        ("http", "tables", {"HTTP_PROXY": "http://p:1"}, False),
        ("http", "tables", {"HTTP_PROXY": "http://p:1", "NO_PROXY": "other, Tables"}, True),
        ("https", "a.example.org", {"HTTPS_PROXY": "http://p:1", "no_proxy": ".example.org"}, True),
        ("https", "aexample.org", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "example.org"}, False),
        ("https", "a.example.org", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, True),
        ("https", "a.example.org", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": ","}, False),
        ("http", "127.0.0.1", {"HTTP_PROXY": "http://p:1"}, True),
        ("http", "localhost", {"HTTP_PROXY": "http://p:1"}, True),
    ],
)
def test_a_host_that_is_to_be_reached_through_a_proxy_is_refused(monkeypatch, scheme, host, environment, allowed):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with contextlib.nullcontext() if allowed else pytest.raises(StoreError, match="NO_PROXY") as caught:
        check_direct(Origin(scheme, host, 443))
    assert allowed or not caught.value.transient


def test_both_wires_refuse_a_proxy(carrier, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert not refused(carrier, carrier.wire("http://tables:1")).transient


# --- many at once -----------------------------------------------------------------------------------------------------------


def held(gate):
    """Answer only when as many requests are waiting as the gate has parties."""

    def script(server, connection):
        while server.request(connection) is not None:
            gate.wait(60)
            connection.sendall(answer())

    return script


def test_no_thread_waits_for_another(monkeypatch):
    monkeypatch.setattr(connections, "KEPT", 3)
    gate = threading.Barrier(8)
    with Server(held(gate)) as server:
        made = HttpWire(Endpoints("eu-west-1", dynamodb=server.url), CredentialSource())
        threads = [threading.Thread(target=made.send, args=(CALL, 1e9)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for _ in range(5):
            assert server.ended.acquire(timeout=60)  # three connections are kept
        assert not server.ended.acquire(timeout=0.05)
        made.close()
    assert (server.connections, len(server.requests)) == (8, 8)


def test_a_child_process_uses_connections_of_its_own():
    code = """if True:
        import os, sys, time
        from onceward.stores.dynamodb.requests import DYNAMODB
        from onceward.wire.calls import Call
        from onceward.wire.credentials import CredentialSource
        from onceward.wire.endpoints import Endpoints
        from onceward.wire.sockets import HttpWire
        wire = HttpWire(Endpoints("eu-west-1", dynamodb=sys.argv[1]), CredentialSource())
        send = lambda who: wire.send(Call(DYNAMODB, "GetItem", {"who": who}), time.time())
        send("parent")
        child = os.fork()
        if child == 0:
            send("child")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        send("parent")
        wire.close()
        """
    by = {}

    def script(server, connection):
        while (request := server.request(connection)) is not None:
            by.setdefault(connection.getpeername(), []).append(request[1])
            connection.sendall(answer())

    with Server(script) as server:
        subprocess.run([sys.executable, "-c", code, server.url], check=True)
    assert list(by.values()) == [[b'{"who":"parent"}'] * 2, [b'{"who":"child"}']]


def test_coroutines_share_so_many_connections_and_the_others_wait(monkeypatch):
    monkeypatch.setattr(connections, "KEPT", 3)

    async def main(url):
        made = AsyncHttpWire(Endpoints("eu-west-1", dynamodb=url), CredentialSource())
        await asyncio.gather(*(made.send(CALL, 1e9) for _ in range(30)))
        made.close()

    with Server(serve(answer())) as server:
        asyncio.run(main(server.url))
    assert (server.connections, len(server.requests)) == (3, 30)


def test_a_coroutine_may_wait_for_its_turn_longer_than_for_an_answer(monkeypatch):
    monkeypatch.setattr(connections, "KEPT", 1)

    def script(server, connection):
        while server.request(connection) is not None:
            time.sleep(0.25)
            connection.sendall(answer())

    async def main(url):
        made = AsyncHttpWire(Endpoints("eu-west-1", dynamodb=url), CredentialSource(), timeout=2)
        got = await asyncio.gather(*(made.send(CALL, 1e9) for _ in range(12)))
        assert [one.status for one in got] == [200] * 12
        made.close()

    with Server(script) as server:
        asyncio.run(main(server.url))


def test_a_cancelled_send_closes_its_connection_and_gives_back_its_turn(monkeypatch):
    monkeypatch.setattr(connections, "KEPT", 1)

    async def main(server):
        made = AsyncHttpWire(Endpoints("eu-west-1", dynamodb=server.url), CredentialSource())
        task = asyncio.ensure_future(made.send(CALL, 1e9))
        while not server.requests:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(server.ended.acquire, timeout=60)
        assert (await made.send(CALL, 1e9)).body == {"second": 1}
        made.close()

    with Server(slow, serve(answer(b'{"second": 1}'))) as server:
        asyncio.run(main(server))


def test_each_event_loop_has_its_own_connections_until_it_is_closed():
    with Server(serve(answer())) as server:
        made = AsyncHttpWire(Endpoints("eu-west-1", dynamodb=server.url), CredentialSource())
        for number in range(3):
            asyncio.run(made.send(CALL, 1e9))
            assert server.connections == number + 1
            assert server.ended.acquire(timeout=60) if number else True  # the loop before
        made.close()
    assert len(server.requests) == 3


def test_closing_closes_connections_and_the_next_call_opens_others(carrier):
    with Server(serve(answer())) as server:
        made = carrier.wire(server.url)
        carrier.send(made)
        made.close()
        assert server.ended.acquire(timeout=60)
        carrier.send(made)
        carrier.close()
    assert server.connections == 2


def test_a_wire_that_is_gone_leaves_no_connection(carrier):
    with Server(serve(answer())) as server:
        made = carrier.wire(server.url)
        carrier.send(made)
        carrier.open.clear()
        del made
        assert server.ended.acquire(timeout=60)
        if carrier.runner is not None:
            carrier.runner.close()


def test_closing_from_another_thread_is_done_in_the_loops_own():
    async def main(server):
        made = AsyncHttpWire(Endpoints("eu-west-1", dynamodb=server.url), CredentialSource())
        await made.send(CALL, 1e9)
        await asyncio.to_thread(made.close)
        assert await asyncio.to_thread(server.ended.acquire, timeout=60)

    with Server(serve(answer())) as server:
        asyncio.run(main(server))


def test_a_connection_that_was_under_way_at_the_closing_is_not_kept(carrier):
    made = None

    def script(server, connection):
        server.request(connection)
        made.close()
        connection.sendall(answer())
        assert connection.recv(1) == b""

    with Server(script) as server:
        made = carrier.wire(server.url)
        carrier.send(made)
        assert server.ended.acquire(timeout=60)


# --- parts ------------------------------------------------------------------------------------------------------------------


def test_the_sync_wire_loads_nothing_that_it_does_not_need():
    code = (
        "import sys, msgspec, onceward.stores.dynamodb; had = set(sys.modules); import onceward.wire.sockets;"
        "print([name for name in sys.modules.keys() - had if name in ('asyncio', 'ssl', 'email', 'http.client', 'urllib3', 'aiohttp', 'botocore', 'inspect',"
        " 'logging', 'concurrent.futures', 'datetime', 'calendar')])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@given(st.integers(0, 253402300799))
def test_a_date_is_read_as_the_standard_library_reads_it(seconds):
    assert http_calls.read_date(email.utils.formatdate(seconds, usegmt=True).lower().encode()) == seconds


@each(
    "date",
    [
        b"",
        b"yesterday",
        b"fri, 21 anf 2025 13:16:00 gmt",
        b"fri, 21 nov 2025 13:16 gmt",
        b"fri, 21 nov 2025 13:16:00 pst",
        b"fri, 21 nov " + b"9" * 400 + b" 13:16:00 gmt",
        b"fri, 21 nov 20250 13:16:00 gmt",
        b"fri, 00 nov 2025 13:16:00 gmt",
        b"fri, 32 nov 2025 13:16:00 gmt",
        b"fri, 21 nov 2025 24:16:00 gmt",
        b"fri, 21 nov 2025 13:1_:00 gmt",
        b"fri, 21 nov 2025 -1:16:00 gmt",
    ],
)
def test_a_date_that_is_none_is_none(date):
    assert http_calls.read_date(date) is None


@given(
    st.sampled_from(
        [
            answer(b'{"a":1}'),
            b"HTTP/1.1 100 Continue\r\n\r\n" + answer(b'{"a":1}'),
            b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{"a\r\n4;x=y\r\n":1}\r\n0\r\nx: y\r\n\r\n',
        ]
    ),
    st.lists(st.integers(1, 30)),
)
def test_an_answer_is_the_same_however_its_bytes_arrive(data, sizes):
    steps = http1.reply(1000)
    next(steps)
    sizes = iter(sizes)
    with pytest.raises(StopIteration) as caught:
        while data:
            size = next(sizes, 1000)
            part, data = data[:size], data[size:]
            steps.send(part)
    raw = caught.value.value
    assert not data
    assert (raw.status, raw.body, raw.reusable) == (200, b'{"a":1}', True)


@given(st.binary(max_size=200), st.integers(0, 40))
def test_whatever_comes_is_read_or_refused(noise, where):
    steps = http1.reply(100)
    next(steps)
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with contextlib.suppress(StopIteration, http1.Unreadable, ConnectionResetError):
        steps.send(data[:where] + noise or b"x")
        steps.send(noise)
        steps.send(b"")


WHOLE = [
    answer(b'{"Item": {"a": {"S": "b"}}}', headers=[f"x-amz-crc32: {zlib.crc32(b'{}')}"]),
    answer(b'{"a": [1, 2.5e3, null, "\\u00e4"]}'),
    CHUNKED + b"Date: " + DATE.encode() + b'\r\n\r\n3\r\n{"a\r\n4;x=y\r\n":1}\r\n0\r\nx: y\r\n\r\n',
    b"HTTP/1.1 100 Continue\r\n\r\n" + answer(b'{"__type": "x#Throttling"}', "400 Bad Request"),
]
BITS = [
    b"\r\n",
    b"\n",
    b"\0",
    b":",
    b" ",
    b"-",
    b"+",
    b"9" * 30,
    b"{" * 50,
    b"Content-Length: 5\r\n",
    b"HTTP/1.1 ",
    b"\xff",
    b"0\r\n\r\n",
]


def damaged(seed):
    """An answer with a few bytes lost, doubled, changed or put in."""
    chance = random.Random(seed)
    data = bytearray(chance.choice(WHOLE))
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        until = min(len(data), at + chance.choice([0, 1, 1, 2, 8, 40]))
        data[at:until] = chance.choice(
            [b"", bytes(data[at:until]) * 2, bytes([chance.randrange(256)]), chance.choice(BITS)]
        )
        data = data or bytearray(b"?")
    return bytes(data)


@pytest.mark.slow
def test_damaged_answer_is_answer_or_store_error_and_never_another_error(carrier):
    seeds = iter(range(400))

    def script(server, connection):
        if server.request(connection) is not None:
            connection.sendall(damaged(next(seeds)))

    with Server(script) as server:
        made = carrier.wire(server.url, timeout=2)
        for seed in range(200):
            call = CALL if seed % 3 else ObjectCall("GET", "b", "k")
            with contextlib.suppress(StoreError):
                got = carrier.send(made, call)
                assert isinstance(got.body, dict | bytes), seed
                assert got.date is None or got.date < 3e11, seed
        carrier.close()


def test_an_interrupt_in_the_loops_callback_is_a_lost_connection():
    class HardStop(BaseException):
        pass

    def struck():
        yield
        raise HardStop

    async def converse():
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        connection = nonblocking._Connection(ours, asyncio.get_running_loop())
        asked = asyncio.ensure_future(connection.converse(b"request", struck()))
        await asyncio.sleep(0)
        theirs.send(b"HTTP/1.1 ")
        with pytest.raises(ConnectionResetError, match="interrupt"):
            await asked
        connection.close()
        theirs.close()

    asyncio.run(converse())
