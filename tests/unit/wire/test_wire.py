"""Both wires against servers that behave oddly: what is answered, and what is an error."""

import contextlib
import email.utils
import socket
import time
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.wire import connections, http1, http_calls
from onceward.wire.calls import ObjectCall
from tables import each
from web.scripted import DATE, TOKEN, Server, answer, once, reset, serve, slow

pytestmark = pytest.mark.sampled(carrier=1)
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"


def test_an_answer_has_the_status_the_document_date_and_times_around_it(carrier):
    with Server(serve(answer(b'{"Item": {"n": {"N": "1"}}}'), answer(b'{"__type": "x#Y"}', "400 Bad"))) as server:
        ticks = iter(range(100))
        made = carrier.wire(server.url, clock=lambda: float(next(ticks)))
        got = carrier.send(made)
        assert got[:3] == (200, {"Item": {"n": {"N": "1"}}}, email.utils.parsedate_to_datetime(DATE).timestamp())
        assert (got.sent, got.received) == (0.0, 1.0)
        assert carrier.send(made)[:2] == (400, {"__type": "x#Y"})
    head, content = server.requests[0]
    assert head.startswith("POST / HTTP/1.1\r\n")
    assert f"\r\nx-amz-security-token: {TOKEN}\r\n" in head
    assert content == b'{"TableName":"t","Item":{"key":{"S":"k"},"result":{"B":"AP8="}}}'


@pytest.mark.parametrize(
    ("headers", "own"),
    [
        (["X-Amzn-RequestId: 4KBNVRGD25RG1KEO9UT4V3FQDJVV4KQNSO5AEMVJF66Q9ASUAAJG"], True),
        (["Content-Type: application/xml", "x-amz-request-id: 318BC8BC148832E5"], True),
        (["Content-Type: application/json", "X-Amz-Cf-Id: of-a-proxy"], False),
        ([], False),
    ],
)
def test_only_an_answer_of_the_services_own_tells_its_time(carrier, headers, own):
    lines = ["HTTP/1.1 503 Service Unavailable", f"Date: {DATE}", *headers, "Content-Length: 2"]
    with Server(serve("\r\n".join(lines).encode() + b"\r\n\r\n{}")) as server:
        got = carrier.send(carrier.wire(server.url))
    assert (got.date is not None) == own


@pytest.mark.parametrize(
    ("parts", "body", "kept"),
    [
        ([answer(b'{"a":1}')[:20], answer(b'{"a":1}')[20:-3], answer(b'{"a":1}')[-3:]], {"a": 1}, True),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", answer(b"{}")], {}, True),
        ([answer(b'{"a":1}', headers=["Connection: close"])], {"a": 1}, False),
        ([b'HTTP/1.0 200 OK\r\nContent-Length: 7\r\n\r\n{"a":1}'], {"a": 1}, False),
        ([answer(b'{"a":1}') + b"more than was asked for"], {"a": 1}, False),
        ([CHUNKED + b'\r\n3\r\n{"a\r\n4;x=y\r\n":1}\r\n0\r\n\r\n'], {"a": 1}, True),
        ([CHUNKED + b"\r\n", b'0007\r\n{"a', b'":1}\r\n0\r\nx: y\r\n', b"\r\n"], {"a": 1}, True),
    ],
)
def test_answers_come_in_many_forms(carrier, parts, body, kept):
    with Server(serve(parts)) as server:
        made = carrier.wire(server.url)
        for _ in range(2):
            assert carrier.send(made).body == body
    assert server.connections == (1 if kept else 2)


def test_an_answer_without_a_length_ends_with_its_connection(carrier):
    with Server(once(answer(b'{"a":', length=False), b"1}")) as server:
        made = carrier.wire(server.url)
        assert carrier.send(made).body == {"a": 1}
        assert carrier.send(made).body == {"a": 1}
    assert server.connections == 2


def test_objects_go_to_s3_and_come_back(carrier):
    error = b"<?xml?><Error><Code>NoSuchKey</Code><Message>not there</Message><Key>k</Key></Error>"
    with Server(serve(answer(b""), answer(b"\x00\xff"), answer(error, "404 Not Found"))) as server:
        made = carrier.wire(server.url)
        assert carrier.send(made, ObjectCall("PUT", "b", "a/ö", b"\x00\xff")).status == 200
        assert carrier.send(made, ObjectCall("GET", "b", "a/ö")).body == b"\x00\xff"
        missing = carrier.send(made, ObjectCall("GET", "b", "a/ö"))
        assert missing[:2] == (404, {"__type": "NoSuchKey", "message": "not there"})
    head, content = server.requests[0]
    assert head.startswith("PUT /b/a/%C3%B6 HTTP/1.1\r\n")
    assert content == b"\x00\xff"


def test_an_error_that_is_not_json_is_answered_with_its_first_words(carrier):
    page = b"<html>Bad Gateway " + b"x" * 1000
    with Server(serve(answer(page, "502 Bad Gateway"), answer(b"[1]", "500 x"))) as server:
        made = carrier.wire(server.url)
        assert carrier.send(made)[:2] == (502, {"__type": "", "message": page[:200].decode()})
        assert carrier.send(made)[:2] == (500, {"__type": "", "message": "[1]"})


def test_a_session_token_that_an_error_quotes_is_not_passed_on(carrier):
    body = f'{{"__type": "InvalidSignatureException", "message": "x-amz-security-token:{TOKEN}"}}'.encode()
    with Server(serve(answer(body, "400 Bad"))) as server:
        assert TOKEN not in str(carrier.send(carrier.wire(server.url)).body)


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
        assert carrier.refused(made, ObjectCall("PUT", "b", "k", bytes(20_000_000))).transient
        assert time.monotonic() - begun < 40  # not the timeout
        assert carrier.send(made, ObjectCall("PUT", "b", "k", b"x")).status == 200


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 200 OK\r\nConte", answer(b'{"a": "b"}')[:-3]])
@pytest.mark.parametrize("end", [socket.socket.close, reset])
def test_a_fresh_connection_that_ends_within_the_answer_is_passing_error(carrier, part, end):
    def script(server, connection):
        server.request(connection)
        connection.sendall(part)
        end(connection)

    with Server(script) as server:
        error = carrier.refused(carrier.wire(server.url))
    assert error.transient
    assert isinstance(error.__cause__, ConnectionError)
    assert str(error).startswith(f"PutItem at {server.url}: ")
    assert server.connections == 1


def test_nobody_there_is_a_passing_error_a_name_that_no_host_has_is_not(carrier):
    with Server(serve(answer())) as server:
        pass
    for url, transient in ((server.url, True), ("http://no.invalid:1", True), (f"http://{'a' * 70}.invalid:1", False)):
        error = carrier.refused(carrier.wire(url))
        assert error.transient is transient
        assert str(error).startswith(f"PutItem at {url}: ")


def dripping(server, connection):
    server.request(connection)
    for byte in answer(b" " * 1000):
        connection.sendall(bytes([byte]))
        time.sleep(0.02)


@pytest.mark.parametrize("script", [slow, dripping])
def test_an_answer_that_takes_too_long_is_a_passing_error(carrier, script):
    with Server(script) as server:
        made = carrier.wire(server.url, timeout=0.2)
        begun = time.monotonic()
        error = carrier.refused(made)
        assert time.monotonic() - begun > 0.15
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
        error = carrier.refused(made)
        assert time.monotonic() - begun > 0.15
    assert error.transient


@pytest.mark.parametrize(
    "parts",
    [
        [b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n"],
        [CHUNKED + b"\r\n258\r\n", b"x" * 600 + b"\r\n258\r\n", b"x" * 600],
        [b"HTTP/1.1 200 OK\r\n\r\n", *[b"x" * 600] * 3],
    ],
)
def test_an_answer_over_the_limit_is_a_lasting_error(carrier, parts, monkeypatch):
    monkeypatch.setattr(connections, "LIMIT", 1000)
    with Server(serve(parts)) as server:
        error = carrier.refused(carrier.wire(server.url))
    assert not error.transient
    assert "the limit is 1000" in str(error)


BROKEN = {
    "no HTTP": b"SSH-2.0-OpenSSH_9\r\n\r\n",
    "a status that is no number": b"HTTP/1.1 20x OK\r\n\r\n",
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + answer(b"{}"),
    "interim answers only": b"HTTP/1.1 100 Continue\r\n\r\n" * 5000,
    "a flood of headers": answer(b"{}", headers=["X: y"] * 30_000),
    "a folded header": answer(b"{}", headers=["X: a", " Content-Length: 9"]),
    "a bare line feed": answer(b"{}", headers=["X: a\nContent-Length: 9"]),
    "a NUL": answer(b"{}", headers=["X: a\0b"]),
    "a length below zero": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "a length of 5,000 digits": b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
    "a length with a gap": b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\n{}",
    "two lengths": answer(b"{}", headers=["Content-Length: 1"]),
    "a length and chunks": CHUNKED + b"Content-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "another coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "a chunk without a size": CHUNKED + b"\r\n\r\nabc\r\n0\r\n\r\n",
    "a chunk's size with a plus": CHUNKED + b"\r\n+3\r\nabc\r\n0\r\n\r\n",
    "a chunk's size of 5,000 digits": CHUNKED + b"\r\n" + b"f" * 5000 + b"\r\n{}\r\n0\r\n\r\n",
    "a chunk longer than it says": CHUNKED + b"\r\n2\r\n{} \r\n0\r\n\r\n",
    "an endless trailer": CHUNKED + b"\r\n2\r\n{}\r\n0\r\n" + b"x: y\r\n" * 20_000,
    "another checksum": answer(b"{}", headers=[f"x-amz-crc32: {zlib.crc32(b'[]')}"]),
    "a page": answer(b"<html>Sign in to this network"),
    "no object": answer(b"[]"),
    "noise": b"\x16\x03\x01\x00\x00",
    "deep JSON": answer(b'{"a":' * 100_000),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_an_answer_that_cannot_be_read_is_a_passing_error(carrier, broken):
    with Server(serve([BROKEN[broken]])) as server:
        assert carrier.refused(carrier.wire(server.url)).transient


@given(st.integers(0, 253402300799))
def test_a_date_is_read_as_the_standard_library_reads_it(seconds):
    assert http_calls.read_date(email.utils.formatdate(seconds, usegmt=True).lower().encode()) == seconds


@each(
    "date",
    [
        b"",
        b"yesterday",
        b"fri, 21 anf 2025 13:16:00 gmt",
        b"fri, 21 nov 2025 13:16:00 pst",
        b"fri, 21 nov " + b"9" * 400 + b" 13:16:00 gmt",
        b"fri, 32 nov 2025 13:16:00 gmt",
        b"fri, 21 nov 2025 13:1_:00 gmt",
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
