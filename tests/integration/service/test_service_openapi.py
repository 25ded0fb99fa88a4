"""The OpenAPI document is committed, and what the service answers is what it says, also to bodies that nobody would write by hand."""

import asyncio
import contextlib
import json

import pytest
import requests
import schemathesis
from hypothesis import given
from hypothesis import strategies as st
from schemathesis.specs.openapi.schemas import OpenApiSchema

from fixtures import closing_fixture
from onceward import Once
from onceward.service import service
from onceward.service.openapi import document
from onceward.service.tokens import ACTIONS, add, generate_token
from places import DOCS
from web.asgi import ask
from web.services import Api, new_id, serving


def test_the_committed_document_is_that_of_the_code():
    committed = json.loads((DOCS / "reference" / "service.json").read_text(encoding="utf-8"))
    assert committed == document(), "run python docs/draw_openapi.py"


def test_the_reference_has_each_problem_and_each_action():
    page = (DOCS / "reference" / "service.md").read_text(encoding="utf-8")
    for path in document()["paths"].values():
        for operation in path.values():
            assert operation["operationId"] == "health" or f"| `{operation['operationId']}` |" in page
            for status, answer in operation["responses"].items():
                for told in answer["description"].split("; ") if int(status) >= 400 else ():
                    assert f"`{told.partition(':')[0]}`" in page, told


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    folder = tmp_path_factory.mktemp("openapi")
    token, line = generate_token("tester", ["*"], ["*"])
    add(str(folder / "tokens.txt"), line)
    with serving(
        f"sqlite:///{folder}/ledger.db?timeout=30", "--tokens", str(folder / "tokens.txt"), "--no-log"
    ) as service:
        service.token = token
        service.schema = schemathesis.openapi.from_url(f"{service.place}/openapi.json")
        assert (
            type(service.schema) is OpenApiSchema
        )  # imported above: Python 3.11 does not bear other parsing beside this import
        yield service


def test_the_answers_of_a_whole_life_are_those_of_the_document(described):
    """Generated requests never get past the first claim, so these go the whole way."""
    api = Api(described.place, "life", described.token)

    def checked(action, status, **fields):
        address = f"{described.place}/v1/life/{action}"
        answer = requests.post(address, json=fields, headers={"Authorization": f"Bearer {described.token}"}, timeout=60)
        assert answer.status_code == status, answer.text
        described.schema["/v1/{namespace}/" + action]["POST"].validate_response(answer)
        return answer.json()

    claim = {"key": ["order", 1], "id": new_id()}
    claim["fence"] = checked("claim", 201, **claim, derive=["mail"], input={"a": 1}, worker="w/1")["fence"]
    checked("claim", 409, key=claim["key"], id=new_id())
    checked("claim", 422, key=claim["key"], id=new_id(), input={"a": 2})
    checked("extend", 200, **claim, derive=["mail"])
    checked("step", 200, **claim, step="s")
    checked("step", 200, **claim, step="s", result=None)
    checked("step", 422, **claim, step="s", result=1)
    checked("look", 200, key=claim["key"])
    checked("complete", 200, **claim, result={"a": [1]})
    checked("complete", 422, **claim, result=1)
    checked("claim", 200, key=claim["key"], id=new_id())
    checked("claim", 422, key=claim["key"], id=claim["id"])
    checked("extend", 410, **claim)
    checked("look", 200, key=claim["key"])
    checked("look", 404, key="nothing")
    checked("release", 200, **api.claimed("b"), error="E")
    checked("park", 200, **api.claimed("b"), error="E")
    checked("claim", 423, key="b", id=new_id())
    checked("complete", 200, **api.claimed("c"), no_result="why")
    checked("claim", 409, key="c", id=new_id())


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
once = closing_fixture(lambda: Once("memory:"), scope="module")


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
