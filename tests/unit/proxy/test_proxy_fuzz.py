"""The proxy's headers, over requests and answers that nobody would write by hand."""

import re
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from onceward.proxy.upstream import RequestHeaders, answer_lines

NAMES = st.sampled_from(
    [
        *[
            b"host",
            b"connection",
            b"idempotency-key",
            b"idempotency_key",
            b"onceward-fence",
            b"onceward_attempt",
            b"te",
        ],
        *[b"x-forwarded-for", b"x_forwarded_for", b"forwarded", b"content-length", b"transfer-encoding", b"expect"],
        b"x-a",
    ]
)
VALUES = st.sampled_from([b"close", b"x-a, x-forwarded-for", b"1", b"", b"chunked"]) | st.binary(max_size=12).map(
    lambda text: re.sub(rb"[\x00-\x1f\x7f]", b"", text)
)
CLAIM = SimpleNamespace(key=lambda _: "key", attempt=1, fence=7)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=12), st.booleans())
def test_no_client_sets_what_the_proxy_says(headers, keyed):
    scope = {"headers": headers, "client": ("10.0.0.1", 1), "scheme": "http", "http_version": "1.1", "method": "GET"}
    lines = RequestHeaders(b"upstream", ()).lines(scope, {}, CLAIM if keyed else None)
    found = {}
    for name, value in lines:
        found.setdefault(name, []).append(value)
    assert found[b"host"] == [b"upstream"]
    assert found[b"x-forwarded-for"] == [b"10.0.0.1"]
    assert found.get(b"idempotency-key") == [b'"key"'] or not keyed
    assert found.get(b"onceward-fence") == ([b"7"] if keyed else None)
    assert not {b"te", b"expect", b"connection", b"transfer-encoding", b"content-length", b"forwarded"} & found.keys()
    assert not {b"idempotency_key", b"onceward_attempt", b"x_forwarded_for"} & found.keys()


@given(st.lists(st.tuples(NAMES, VALUES), max_size=12), st.sampled_from([200, 204, 304, 502]))
def test_no_header_of_a_connection_reaches_the_client(headers, status):
    names = {name for name, _ in answer_lines(status, headers)}
    assert not {b"connection", b"te", b"transfer-encoding"} & names
    assert status in {200, 502} or b"content-length" not in names
