"""The clients in TypeScript (in Node.js), Go and Java, against the real service; and what it answers is what its OpenAPI document says."""

import asyncio
import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter

import pytest
import requests
import schemathesis
from hypothesis import given
from hypothesis import strategies as st
from schemathesis.specs.openapi.schemas import OpenApiSchema

from fixtures import closing_fixture
from onceward import Once
from onceward.keys.ledger_keys import derived_key
from onceward.service import service as application
from onceward.service.tokens import ACTIONS, add, generate_token
from places import DOCS, ROOT
from servers.needs import needs, typescript
from servers.orphans import watched
from servers.proxy import Fault, Proxy
from web.asgi import ask
from web.scripted import Server, serve
from web.services import PATIENCE, Api, new_id, serving

sys.path.insert(0, str(DOCS))
from draw_openapi import PAGE as OPENAPI
from draw_openapi import document

SOURCE = ROOT / "clients" / "typescript"
LONG = 900  # seconds: Go compiles its HTTP library first
PAGE = (DOCS / "reference" / "service.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The client and the cases, compiled: an error of types fails here."""
    node, folder = needs("node", "apt-get install nodejs"), tmp_path_factory.mktemp("typescript")
    for file in (SOURCE / "onceward.ts", SOURCE / "tsconfig.json", ROOT / "tests/support/typescript/cases.ts"):
        shutil.copy(file, folder)
    worker = re.search(r'```ts title="worker.ts"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL)[1]
    (folder / "worker.ts").write_text(worker)
    (folder / "package.json").write_text('{"type": "module"}')
    compiler = [node, str(typescript() / "bin" / "tsc"), "-p", "."]
    done = subprocess.run(compiler, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    return folder / "dist"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with serving(f"sqlite:///{tmp_path_factory.mktemp('ledger')}/ledger.db?timeout=30") as made:
        yield made


@pytest.fixture
def own(tmp_path):
    """A service of this test's own."""
    with serving(f"sqlite:///{tmp_path}/ledger.db") as made:
        yield made


@pytest.fixture
def namespace():
    return f"shop.{uuid.uuid4().hex}"


@contextlib.contextmanager
def running(compiled, place, namespace, case):
    """Give a case that runs; read its lines with ``told``."""
    command = ["node", "cases.js", place, namespace, case]
    process = watched(subprocess.Popen(command, cwd=compiled, stdout=subprocess.PIPE, text=True))
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def told(process):
    """Return the next thing that a case says."""
    line = process.stdout.readline()
    assert line, "it ended"
    return json.loads(line)


def test_a_replay_is_the_first_answer(compiled, service, namespace):
    values = [None, 0, "", [], {}, False, 1.5, "\0é😀", {"a": [None, {"$onceward": 1}]}, None]
    with running(compiled, service.place, namespace, "values") as case:
        for value in values:
            assert told(case) == [value, value, 1]


AWAY = "TypeError: the mail server is away"
UNWRITABLE = ["none", "result-unavailable", "away", "parked"] * 3 + [6, "again"]
LATE = ["away", "away", 1, "lost", 1, "lost", 1, "none", "unreachable", 1]
REFUSALS = ["mismatch", "parked", "busy", "parked", "malformed", "result-unavailable", "true"]


@pytest.mark.parametrize(
    ("case", "says"),
    [
        pytest.param("twice", [{"receipt": 1}, {"receipt": 1}, 1], id="of two calls at once one works"),
        pytest.param("retry", [AWAY, {"paid": {"paid": 7}, "attempt": 2}, 1], id="a step is made once over attempts"),
        pytest.param("beside", [AWAY, 1], id="no key is given back while a step runs", marks=pytest.mark.nightly),
        pytest.param("asleep", [False, True], id="a sleeper knows its lease is over", marks=pytest.mark.nightly),
        pytest.param("unwritable", UNWRITABLE, id="work is done once whose result cannot be sent"),
        pytest.param("late", LATE, id="no work begins when its answer is late"),
        pytest.param("refusals", REFUSALS, id="refusals have their kinds"),
    ],
)
def test_what_one_client_sees(compiled, service, namespace, case, says):
    with running(compiled, service.place, namespace, case) as process:
        assert told(process) == says


def test_lost_answers_double_no_effect(compiled, service, namespace):
    proxy, came = Proxy(int(service.place.rpartition(":")[2])), Counter()

    def lose_every_other(seen):
        came[seen.path] += 1
        return Fault(lose_reply=came[seen.path] % 2 == 1)

    proxy.rule = lose_every_other
    try:
        with running(compiled, proxy.url, namespace, "effects") as case:
            first, second, effects = told(case)
    finally:
        proxy.stop()
    assert first == second
    assert (first["mail"], first["attempt"]) == ({"sent": True}, 1)
    assert effects == [derived_key(f"{namespace}:k", ("refund",)), derived_key(f"{namespace}:k", ("mail",))]


@pytest.mark.nightly
def test_the_lease_is_renewed_while_the_handler_runs(compiled, service, namespace):
    api = Api(service.place, namespace)
    with running(compiled, service.place, namespace, "long") as case:
        assert told(case) == "began"
        refused = []
        while case.poll() is None and (answer := api("claim", key="k", id=new_id())).status == 409:
            refused.append(answer.problem)
            time.sleep(0.2)
        assert told(case) == {"lost": False}
    assert set(refused) == {"busy"}
    assert api("look", key="k").body["attempt"] == 1


@pytest.mark.nightly
def test_a_client_that_was_paused_is_told(compiled, service, namespace):
    api = Api(service.place, namespace)
    with running(compiled, service.place, namespace, "stopped") as case:
        assert told(case) == "began"
        case.send_signal(signal.SIGSTOP)
        end = time.monotonic() + PATIENCE
        while (second := api("claim", key="k", id=(mine := new_id()))).status != 201:
            assert time.monotonic() < end
            time.sleep(0.2)
        case.send_signal(signal.SIGCONT)
        assert told(case) == ["aborted", True]
        assert told(case) == "result-not-recorded"
        assert api("complete", key="k", id=mine, fence=second.body["fence"], result="mine").status == 200
        assert told(case) == "mine"


def test_a_service_that_is_killed_in_the_middle_is_waited_for(compiled, own, namespace):
    with running(compiled, own.place, namespace, "restart") as case:
        assert told(case) == "began"
        own.kill()
        own.start()
        assert told(case) == "done"
    assert own.api.place == own.place


@pytest.mark.nightly
def test_what_cannot_be_recorded_is_told_with_its_result(compiled, own, namespace):
    with running(compiled, own.place, namespace, "unrecorded") as case:
        assert told(case) == "began"
        own.kill()
        assert told(case) == [True, {"receipt": 7}]
        assert told(case) == "kept"


@pytest.mark.nightly
def test_the_client_in_go_works_once(tmp_path):
    go = needs("go", "https://go.dev/doc/install")

    def build(source):
        done = subprocess.run(
            [go, "build", "-o", "claim", source.name], cwd=tmp_path, capture_output=True, text=True, timeout=LONG
        )
        assert done.returncode == 0, done.stderr
        return [tmp_path / "claim"]

    works_once(tmp_path, "go/claim.go", build, "go run claim.go order-1", "7}", 'bytes.Repeat([]byte("x"), 1<<20)}')


@pytest.mark.nightly
def test_the_client_in_java_works_once(tmp_path):
    java = needs("java", "apt-get install default-jdk-headless")
    shown, large = "java Claim.java order-2", r'\"" + "x".repeat(1 << 20) + "\"}"'
    works_once(tmp_path, "java/Claim.java", lambda source: [java, source], shown, '8}"', large)


def works_once(folder, client, build, shown, work, large):
    source = folder / client.rpartition("/")[2]
    with serving(f"sqlite:///{folder}/ledger.db") as service:
        text = (ROOT / "clients" / client).read_text(encoding="utf-8")
        text = text.replace("http://127.0.0.1:8767", service.place)
        source.write_text(text)
        command, key = build(source), shown.rpartition(" ")[2]
        runs = [subprocess.run([*command, key], capture_output=True, text=True, timeout=LONG) for _ in range(2)]
        assert [run.stdout.strip() for run in runs] == re.findall(rf"^\$ {re.escape(shown)}\n(.*)$", PAGE, re.MULTILINE)
        assert Api(service.place)("look", key=key).body["attempt"] == 1
        source.write_text(text.replace(work, large))  # its result is too large for a request
        large = build(source)
        assert "completed" in subprocess.run([*large, "large"], capture_output=True, text=True).stdout
        won = service.api("claim", key="parked", id=(mine := new_id()))
        service.api("park", key="parked", id=mine, fence=won.body["fence"])
        assert [subprocess.run([*large, name], capture_output=True).returncode for name in (key, "parked")] == [0, 1]
    own, other = (
        f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        for status, body in ((201, '{"outcome":"claimed","fence":7,"lease":30.0}'), (200, "{}"))
    )
    for answers in ([other], [own, other]):
        with Server(serve(*answers)) as proxy:
            source.write_text(text.replace(service.place, proxy.url))
            assert subprocess.run([*build(source), key], capture_output=True).returncode == 1


def test_a_request_that_offers_an_upgrade_keeps_its_body(service):
    """Java's HttpClient offers HTTP/2 in each request without TLS."""
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAEAAEAAAAIAAAAB"}
    body = b'{"key": "k"}'
    told = service.api.send("POST", "/v1/shop/look", body, **offer, **{"Content-Type": "application/json"})
    assert (told.status, told.problem) == (404, "not-found")
    assert "Nothing is recorded" in told.body["detail"]


def test_the_committed_document_is_that_of_the_code():
    committed = json.loads(OPENAPI.read_text(encoding="utf-8"))
    assert committed == document(), "run python docs/draw_openapi.py"


def test_the_reference_has_each_problem_and_each_action():
    for path in document()["paths"].values():
        for operation in path.values():
            assert operation["operationId"] == "health" or f"| `{operation['operationId']}` |" in PAGE
            for status, answer in operation["responses"].items():
                for told in answer["description"].split("; ") if int(status) >= 400 else ():
                    assert f"`{told.partition(':')[0]}`" in PAGE, told


@pytest.fixture(scope="module")
def described(tmp_path_factory):
    folder = tmp_path_factory.mktemp("openapi")
    token, line = generate_token("tester", ["*"], ["*"])
    add(str(folder / "tokens.txt"), line)
    with serving(
        f"sqlite:///{folder}/ledger.db?timeout=30", "--tokens", str(folder / "tokens.txt"), "--no-log"
    ) as made:
        made.token = token
        made.schema = schemathesis.openapi.from_url(f"{made.place}/openapi.json")
        assert (
            type(made.schema) is OpenApiSchema
        )  # imported above: Python 3.11 does not bear other parsing beside this import
        yield made


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
    app = application(once)
    if b'"wait"' not in body:  # that of another example would wait for its key
        asked(app, f"/v1/bodies/{action}", body, [])


@pytest.mark.parametrize(
    ("opened", "last"), [(lambda data: data[::-1], 422), (lambda _: 1 / 0, 200)], ids=["sealed", "redacted"]
)
def test_a_sealed_result_is_completed_once(opened, last):
    with contextlib.closing(Once("memory:", seal=(lambda data: data[::-1], opened))) as sealed:
        app = application(sealed)
        names = {"key": "k", "id": ID}
        fence = asked(app, "/v1/shop/claim", json.dumps(names).encode(), [])[1]["fence"]
        answers = []
        for result in 1, 1, 2:
            body = json.dumps(names | {"fence": fence, "result": result}).encode()
            answers.append(asked(app, "/v1/shop/complete", body, [])[0])
        assert answers[:2] == [200, 200]
        assert answers[2] == last
