"""Tokens, bodies and paths that nobody would write by hand: each request is answered, and none fails the service."""

import asyncio
import contextlib
import json
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from onceward import Once
from onceward.core.record import Elsewhere
from onceward.service import service
from onceward.service.bodies import ClaimBody, CompleteBody
from onceward.service.claims import Claims
from onceward.service.problems import RequestRefused
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


@given(value=VALUES.filter(lambda value: "\\ud" not in json.dumps(value)))
def test_any_result_comes_back_as_its_own_text(once, value):
    app, text = service(once, log_requests=False), json.dumps(value)
    if "NaN" in text or "Infinity" in text:
        return
    names = {"key": f"k-{text}"[:200], "id": ID}
    status, claim = asked(app, "/v1/results/claim", json.dumps(names).encode(), [])
    if status != 201:
        assert claim["type"].endswith(":id-used")  # this example came before
        return
    body = json.dumps(names | {"fence": claim["fence"]})[:-1] + f', "result": {text}}}'
    assert asked(app, "/v1/results/complete", body.encode(), [])[0] == 200
    again = json.dumps(names | {"id": "f" * 32}).encode()
    client = asyncio.run(ask(app, again, path="/v1/results/claim", headers=[HOST, JSON]))
    assert f'"result":{text},'.encode() in client.body


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


def test_of_two_large_results_at_once_the_second_is_refused(once, monkeypatch):
    """A result that the store keeps elsewhere cannot be compared without fetching it."""

    def swap(write, seen):
        reply = yield from whole(write, seen)
        if reply.won or reply.record.result is None:
            return reply
        apart = Elsewhere("elsewhere")
        apart.fetch = lambda: fetched(reply.record.result)
        return reply._replace(record=reply.record._replace(result=apart))

    def fetched(text):
        yield from once.store.load("k")
        return text

    async def main():
        won = await claims.claim("shop", ClaimBody(key="large", id=ID), claims.clock(), "local")
        bodies = [
            CompleteBody(key="large", id=ID, fence=won.fence, result=Raw(b'"%b"' % text)) for text in (b"a", b"b")
        ]
        held = [
            await claims._held("shop", body, 5.0, "record its result") for body in bodies
        ]  # both see it in progress
        monkeypatch.setattr(claims, "_held", AsyncMock(side_effect=held))
        assert (await claims.complete("shop", bodies[0], 0.0)).replayable
        with pytest.raises(RequestRefused):
            await claims.complete("shop", bodies[1], 0.0)

    claims, whole = Claims(once, longest_lease=600, longest_wait=0), once.store.swap
    monkeypatch.setattr(once.store, "swap", swap)
    asyncio.run(main())
