"""Answers and their records, with real servers: ledgers that vanish while handlers run, and answers that are cut short."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from onceward import Once, StoreError
from onceward.core.record import COMPLETED
from onceward.stores.memory import MemoryStore
from onceward.testing.faults import Faults, fail_before, when
from servers.proxy import Fault
from waiting import until
from web.calls import AsgiIdempotency, Rules, call, post
from web.servers import gunicorn, keyed, uvicorn

pytestmark = pytest.mark.sampled(served=1)

THREADS = ("--worker-class", "gthread", "--threads", "2")
SERVERS = {
    "starlette": (uvicorn, "/slow", ()),
    "fastapi": (uvicorn, "/slow", ()),
    "wsgi": (gunicorn, "/slow", THREADS),
    "flask_app": (gunicorn, "/slow", THREADS),
    "django_wsgi": (gunicorn, "/slow", THREADS),
    "django_asgi": (uvicorn, "/slow", ()),
    "django_asgi/later": (uvicorn, "/later", ()),
}


def away(seen):
    return Fault(lose_request=True)


class Place:
    """Where the applications find their ledger, and where they leave their effects."""

    def __init__(self, url, folder):
        self.url, self.go, self.log = url, folder / "go", folder / "log"
        self.environment = {"LEDGER": url, "GO": str(self.go), "LOG": str(self.log)}

    @property
    def effects(self):
        return self.log.read_text().splitlines() if self.log.exists() else []

    @property
    def statuses(self):
        return [record.status for record, _ in Once(self.url).ledger.records()]


@pytest.fixture
def place(url, tmp_path):
    return Place(url, tmp_path)


@pytest.fixture(params=SERVERS)
def served(request, place):
    start, path, options = SERVERS[request.param]
    with start(f"web_recording:{request.param.partition('/')[0]}", *options, **place.environment) as server:
        yield server, path


def answered_while_away(server, path, proxy, place):
    """Send a request whose ledger vanishes as it is handled; return its answer and how long that took."""
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(server.post, path, b"{}", keyed("k"))
        until(lambda: place.effects)
        proxy.rule = away
        began = time.monotonic()
        place.go.touch()
        return pending.result(), time.monotonic() - began


def test_answer_goes_out_though_its_ledger_is_away_and_is_recorded_later(served, proxy, place):
    server, path = served
    (status, fields, body), took = answered_while_away(server, path, proxy, place)
    assert (status, body.strip(b'"')) == (201, b"done")
    assert fields["idempotency-recorded"] == "pending"
    assert took < 8
    proxy.clear()
    until(lambda: place.statuses == [COMPLETED])
    status, fields, body = server.post(path, b"{}", keyed("k"))
    assert (status, fields["idempotent-replayed"], body.strip(b'"')) == (201, "true", b"done")
    assert "idempotency-recorded" not in fields
    assert len(place.effects) == 1


@pytest.mark.sampled("starlette")
@pytest.mark.parametrize("name", ["starlette", "flask_app", "django_asgi/later"])
def test_a_server_that_stops_records_first_what_it_has_answered(name, proxy, place):
    start, path, options = SERVERS[name]
    with start(f"web_recording:{name.partition('/')[0]}", *options, **place.environment) as server:
        answer, _ = answered_while_away(server, path, proxy, place)
        assert answer[1]["idempotency-recorded"] == "pending"
        os.kill(server.process.pid, signal.SIGTERM)
        time.sleep(0.5)
        assert server.process.poll() is None
        proxy.clear()
        server.process.wait(30)
        assert place.statuses == [COMPLETED]


class Leaving:
    """An application whose ledger is away from when it answers on."""

    def __init__(self, *, lease, **options):
        self.is_away = False
        once = Once(Faults(MemoryStore(), when(lambda ask: self.is_away, fail_before())), lease=lease)
        self.guarded = AsgiIdempotency(self, once, Rules(**options))

    async def __call__(self, scope, receive, send):
        self.is_away = True
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body"})


def test_fifty_requests_without_a_ledger_leave_one_traceback_on_the_log(caplog):
    down = Once(Faults(MemoryStore(), when(lambda ask: True, fail_before(lambda message: StoreError("it is away")))))
    answers = call(AsgiIdempotency(None, down), *(post("/orders", f"k{number}") for number in range(52)))
    assert {answer.status_code for answer in answers} == {503}
    told = [record for record in caplog.records if record.name == "onceward"]
    assert [record.exc_info is not None for record in told] == [True, False]
    assert "(10 times in " in told[1].message


def test_a_late_recording_that_fails_in_the_end_is_logged_with_its_key(caplog):
    (answer,) = call(Leaving(lease=1.5, record_within=0.2).guarded, post("/orders", "k"))
    assert (answer.status_code, answer.headers["idempotency-recorded"]) == (201, "pending")
    assert any(record.levelname == "ERROR" and record.message.startswith("http:k") for record in caplog.records)


def test_on_lambda_which_freezes_answers_wait_for_their_records(monkeypatch):
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "orders")
    (answer,) = call(Leaving(lease=1, record_within=5).guarded, post("/orders", "k"))
    assert answer.status_code == 201
    assert "idempotency-recorded" not in answer.headers
