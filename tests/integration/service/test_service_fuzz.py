"""Tokens, bodies and paths that nobody would write by hand: each request is answered, and none fails the service."""

import asyncio
import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward import Once
from onceward.service import service
from onceward.service.tokens import ACTIONS
from web.asgi import ask

ID = "0123456789abcdef" * 2
JSON = (b"content-type", b"application/json")
HOST = (b"host", b"localhost")
TEXT = st.text(max_size=8) | st.sampled_from(["k", "a\0b", "\ud800", "\U0001f600", "\x1b[2J", " "])
NUMBERS = st.integers() | st.floats() | st.sampled_from([2**63, -1, 0, 1e308, 60])
VALUES = st.recursive(
    TEXT | NUMBERS | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["key", "id", "fence", "input", "lease", "wait", "retention", "max_attempts", "on_lapse", "derive", "worker",
        "step", "result", "no_result", "error", "other"]
)  # fmt: skip
# A valid request whose fields are replaced, or bytes of any kind.
BODIES = st.one_of(
    st.dictionaries(FIELDS, VALUES, max_size=3).map(lambda more: json.dumps({"key": "k", "id": ID} | more).encode()),
    st.dictionaries(FIELDS, VALUES, max_size=3).map(
        lambda more: json.dumps({"key": "k", "id": ID, "fence": 1, "step": "s", "result": 1} | more).encode()
    ),
    st.binary(max_size=40),
    st.lists(st.sampled_from([b"{", b"}", b"[", b'"', b":", b",", b"1e400", b"\\ud800", b'"key"', b"\xff"])).map(
        b"".join
    ),
)
KNOWN = {200, 201, 400, 401, 403, 404, 405, 409, 410, 413, 415, 421, 422, 423}


@pytest.fixture(scope="module")
def once():
    made_here = Once("memory:")
    yield made_here
    made_here.close()


def asked(app, path, body, headers):
    """The answer to a request."""
    raw = path.encode("utf-8", "surrogateescape")
    how = {"path": path, "raw_path": raw, "headers": [HOST, JSON, *headers]}
    client = asyncio.run(ask(app, body, **how))
    assert client.status in KNOWN, client.sent
    told = json.loads(client.body)
    if client.status >= 400:
        assert told["status"] == client.status
        assert client.headers["content-type"] == "application/problem+json"
    return client.status, told


@given(action=st.sampled_from(ACTIONS), body=BODIES)
def test_any_body_is_answered_and_fails_nothing(once, action, body):
    app = service(once, log_requests=False)
    if b'"wait"' not in body:  # that of another example would wait for its key
        asked(app, f"/v1/bodies/{action}", body, [])


@pytest.mark.parametrize(
    ("opened", "last"), [(lambda data: data[::-1], 422), (lambda _: 1 / 0, 200)], ids=["sealed", "redacted"]
)
def test_a_sealed_result_is_completed_once(opened, last):
    with contextlib.closing(Once("memory:", seal=(lambda data: data[::-1], opened))) as sealed:
        app = service(sealed, log_requests=False)
        names = {"key": "k", "id": ID}
        fence = asked(app, "/v1/shop/claim", json.dumps(names).encode(), [])[1]["fence"]
        answers = []
        for result in 1, 1, 2:
            body = json.dumps(names | {"fence": fence, "result": result}).encode()
            answers.append(asked(app, "/v1/shop/complete", body, [])[0])
        assert answers[:2] == [200, 200]
        assert answers[2] == last
