"""The clients in TypeScript (in Node.js), Go and Java, against the real service."""

import contextlib
import json
import re
import shutil
import signal
import subprocess
import time
import uuid
from collections import Counter

import pytest

from onceward.keys.ledger_keys import derived_key
from places import DOCS, ROOT
from servers.needs import needs, typescript
from servers.orphans import watched
from servers.proxy import Fault, Proxy
from web.services import PATIENCE, Api, new_id, serving

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
REFUSALS = ["mismatch", "parked", "busy", "parked", "malformed", "result-unavailable", "true"]


@pytest.mark.parametrize(
    ("case", "says"),
    [
        pytest.param("twice", [{"receipt": 1}, {"receipt": 1}, 1], id="of two calls at once one works"),
        pytest.param("retry", [AWAY, {"paid": {"paid": 7}, "attempt": 2}, 1], id="a step is made once over attempts"),
        pytest.param("beside", [AWAY, 1], id="no key is given back while a step runs", marks=pytest.mark.nightly),
        pytest.param("asleep", [False, True], id="a sleeper knows its lease is over", marks=pytest.mark.nightly),
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

    works_once(tmp_path, "go/claim.go", build, "go run claim.go order-1")


@pytest.mark.nightly
def test_the_client_in_java_works_once(tmp_path):
    java = needs("java", "apt-get install default-jdk-headless")
    works_once(tmp_path, "java/Claim.java", lambda source: [java, source], "java Claim.java order-2")


def works_once(folder, client, build, shown):
    source = folder / client.rpartition("/")[2]
    with serving(f"sqlite:///{folder}/ledger.db") as service:
        text = (ROOT / "clients" / client).read_text(encoding="utf-8")
        source.write_text(text.replace("http://127.0.0.1:8767", service.place))
        command, key = build(source), shown.rpartition(" ")[2]
        runs = [subprocess.run([*command, key], capture_output=True, text=True, timeout=LONG) for _ in range(2)]
        assert [run.stdout.strip() for run in runs] == re.findall(rf"^\$ {re.escape(shown)}\n(.*)$", PAGE, re.MULTILINE)
        assert Api(service.place)("look", key=key).body["attempt"] == 1


def test_a_request_that_offers_an_upgrade_keeps_its_body(service):
    """Java's HttpClient offers HTTP/2 in each request without TLS."""
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAEAAEAAAAIAAAAB"}
    body = b'{"key": "k"}'
    told = service.api.send("POST", "/v1/shop/look", body, **offer, **{"Content-Type": "application/json"})
    assert (told.status, told.problem) == (404, "not-found")
    assert "Nothing is recorded" in told.body["detail"]
