"""The proxy's readers and writers of headers, over answers and requests that nobody would write by hand."""

import asyncio
import re
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from onceward.proxy.connection import Connection
from onceward.proxy.headers import RequestHeaders, answer_lines
from onceward.proxy.reading import read_body, read_head
from onceward.wire.http1 import Unreadable

TRANSPORT = SimpleNamespace(
    pause_reading=lambda: None,
    resume_reading=lambda: None,
    is_closing=lambda: False,
    abort=lambda: None,
    get_extra_info=lambda _: None,
)
PIECES = [
    *(
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.0 201 X\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 999 X\r\n",
        b"HTTP/2 200\r\n",
    ),
    *(
        b"Content-Length: 3\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: 1e3\r\n",
        b"Transfer-Encoding: chunked\r\n",
    ),
    *(
        b"Transfer-Encoding: gzip\r\n",
        b"Connection: close, x\r\n",
        b"X: \x00\r\n",
        b" folded\r\n",
        b"X y: z\r\n",
        b": z\r\n",
    ),
    *(b"\r\n", b"\n", b"\r", b"3\r\nabc\r\n", b"0\r\n\r\n", b"-3\r\n", b"fffffffffffffffff\r\n", b"0x3\r\n", b"abc"),
]
ANSWERS = st.lists(st.sampled_from(PIECES) | st.binary(max_size=8), max_size=12).map(b"".join)
NAMES = st.sampled_from(
    [
        *(
            b"host",
            b"connection",
            b"idempotency-key",
            b"idempotency_key",
            b"onceward-fence",
            b"onceward_attempt",
            b"te",
        ),
        *(
            b"x-forwarded-for",
            b"x_forwarded_for",
            b"forwarded",
            b"content-length",
            b"transfer-encoding",
            b"expect",
            b"x-a",
        ),
    ]
)
VALUES = st.sampled_from([b"close", b"x-a, x-forwarded-for", b"1", b"", b"chunked"]) | st.binary(max_size=12).map(
    lambda text: re.sub(rb"[\x00-\x1f\x7f]", b"", text)
)
CLAIM = SimpleNamespace(key=lambda _: "key", attempt=1, fence=7)


@settings(max_examples=400, deadline=None)
@given(ANSWERS, st.sampled_from(["GET", "HEAD", "POST"]))
def test_any_bytes_of_an_upstream_are_an_answer_or_a_refusal(data, method):
    async def read():
        connection = Connection()
        connection.connection_made(TRANSPORT)
        connection.data_received(data)
        connection.eof_received()
        head = await read_head(connection, method)
        assert 200 <= head.status <= 599
        assert not any(re.search(rb"[\x00-\x08\x0a-\x1f\x7f]", name + value) for name, value in head.headers)
        body = b"".join([part async for part, _ in read_body(connection, head.size)])
        assert head.size is None or head.size < 0 or len(body) == head.size

    try:
        asyncio.run(asyncio.wait_for(read(), 60))
    except (OSError, Unreadable):
        pass


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(NAMES, VALUES), max_size=12), st.booleans())
def test_no_client_sets_what_the_proxy_says(headers, keyed):
    scope = {"headers": headers, "client": ("10.0.0.1", 1), "scheme": "http", "http_version": "1.1"}
    lines = RequestHeaders(b"upstream", ()).lines(scope, CLAIM if keyed else None)
    found = {}
    for name, value in lines:
        found.setdefault(name, []).append(value)
    assert found[b"host"] == [b"upstream"]
    assert found[b"x-forwarded-for"] == [b"10.0.0.1"]
    assert found.get(b"idempotency-key") == [b'"key"'] or not keyed
    assert found.get(b"onceward-fence") == ([b"7"] if keyed else None)
    assert not {b"te", b"expect", b"connection", b"transfer-encoding", b"content-length", b"forwarded"} & found.keys()
    assert not {b"idempotency_key", b"onceward_attempt", b"x_forwarded_for"} & found.keys()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(NAMES, VALUES), max_size=12), st.sampled_from([200, 204, 304, 502]))
def test_no_header_of_a_connection_reaches_the_client(headers, status):
    names = {name for name, _ in answer_lines(status, headers)}
    assert not {b"connection", b"te", b"transfer-encoding"} & names
    assert status in {200, 502} or b"content-length" not in names
