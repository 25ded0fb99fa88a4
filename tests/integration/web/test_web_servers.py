"""Services and the proxy as processes: clients leave, requests have two ends, they are told to stop, and ledgers vanish."""

import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from faults.injected import Faults, fail_before, when
from onceward import Once, StoreError
from onceward.core.record import COMPLETED
from onceward.stores.memory import MemoryStore
from servers.proxy import Fault
from tables import each
from waiting import until
from web.calls import AsgiIdempotency, Rules, call, post
from web.http_servers import Answering
from web.servers import gunicorn, keyed, payment, serving, uvicorn

FLASK, DJANGO = "payments_flask:app", "payments_django:application"
SERVERS = {
    "flask, threads, preloaded": (gunicorn, FLASK, "--workers", "2", "--threads", "6", "--preload"),
    "django, processes": (gunicorn, DJANGO, "--workers", "4"),
    "django under asgi": (uvicorn, "payments_django:asgi", "--workers", "2"),
    "fastapi": (uvicorn, "payments_fastapi:app"),
}


@pytest.fixture
def ledger_url(tmp_path):
    return f"sqlite:///{tmp_path}/payments.db"


@pytest.mark.sampled("flask, threads, preloaded", "fastapi")
@pytest.mark.parametrize("program", SERVERS)
def test_a_server_told_to_stop_waits_for_a_payment_whose_client_has_left(ledger_url, program):
    start, *options = SERVERS[program]
    with start(*options, LEDGER=ledger_url, BANK_SECONDS="1") as server:
        with pytest.raises(TimeoutError):
            server.post("/payments", payment("a"), keyed("k"), 0.4)
        server.process.terminate()
        server.process.wait(120)  # gunicorn kills a worker after 30 s that it stopped as it began
    assert [record.status for record, _ in Once(ledger_url).ledger.records()] == [COMPLETED]


def test_a_proxy_told_to_stop_finishes_the_request_under_way(ledger_url):
    with contextlib.closing(Answering()) as upstream:
        command = (
            f"onceward proxy --upstream {upstream.url} --name http --scope everybody --port PORT --store {ledger_url}"
        )
        with serving(*command.split()) as server:
            upstream.pause = 1.0
            with pytest.raises(TimeoutError):
                server.post("/orders", b"{}", keyed("k"), 0.5)
            until(lambda: [path for _, path, _, _ in upstream.came if path == "/orders"])
            server.process.terminate()
            server.process.wait(60)
    assert [record.status for record, _ in Once(ledger_url).ledger.records()] == [COMPLETED]


def test_a_worker_that_takes_too_long_for_gunicorn_leaves_key_to_lease(ledger_url):
    with gunicorn(FLASK, "--timeout", "1", LEDGER=ledger_url, BANK_SECONDS="60", LEASE="60") as server:
        with contextlib.suppress(http.client.HTTPException, OSError):
            server.post("/payments", payment("a"), keyed("k"), 10)
        assert Once(ledger_url).ledger.is_live("payments:k:*")


@pytest.mark.parametrize(
    ("path", "headers", "size", "told"), [("/orders", keyed("k"), 900_000, b"n:k:*"), ("/body", {}, 150_000, b"")]
)
def test_a_request_does_not_have_the_claim_of_the_one_before_it_on_its_connection(
    ledger_url, path, headers, size, told
):
    # The server stops reading, and goes on in the context of who asks for more.
    with uvicorn("web_claims:app", LEDGER=ledger_url) as server, server.connection() as connection:
        for target, fields, answer in [(path, headers, told), ("/whose", {}, b"")]:
            connection.request("POST", target, b"x" * size, fields)
            assert connection.getresponse().read() == answer


def test_a_pipelined_request_does_not_have_the_claim_of_the_one_before(ledger_url):
    lines = "Host: shop\r\nContent-Length: 0\r\n"
    pair = f'POST /orders HTTP/1.1\r\n{lines}Idempotency-Key: "k"\r\n\r\nPOST /whose HTTP/1.1\r\n{lines}Connection: close\r\n\r\n'
    with uvicorn("web_claims:app", LEDGER=ledger_url) as server, server.connection() as connection:
        connection.connect()
        connection.sock.sendall(pair.encode())
        answers = b"".join(iter(lambda: connection.sock.recv(65536), b""))
    assert answers.count(b"200 OK") == 2
    assert answers.count(b"n:k:*") == 1


pytestmark = pytest.mark.sampled(served=1, server=1)

THREADS = ("--worker-class", "gthread", "--threads", "2")
APPS = {
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


@pytest.fixture(params=APPS)
def served(request, place):
    start, path, options = APPS[request.param]
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
    start, path, options = APPS[name]
    with start(f"web_recording:{name.partition('/')[0]}", *options, **place.environment) as server:
        answer, _ = answered_while_away(server, path, proxy, place)
        assert answer[1]["idempotency-recorded"] == "pending"
        os.kill(server.process.pid, signal.SIGTERM)
        time.sleep(0.5)
        assert server.process.poll() is None
        proxy.clear()
        server.process.wait(120)
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


def test_requests_without_a_ledger_leave_a_line_each_on_the_log(caplog):
    down = Once(Faults(MemoryStore(), when(lambda ask: True, fail_before(lambda message: StoreError("it is away")))))
    answers = call(AsgiIdempotency(None, down), *(post("/orders", f"k{number}") for number in range(2)))
    assert {answer.status_code for answer in answers} == {503}
    told = [record for record in caplog.records if record.name == "onceward"]
    assert [record.exc_info for record in told] == [None, None]


def test_a_late_recording_that_fails_in_the_end_is_logged_with_its_key(caplog):
    (answer,) = call(Leaving(lease=1.5, record_within=0.2).guarded, post("/orders", "k"))
    assert (answer.status_code, answer.headers["idempotency-recorded"]) == (201, "pending")
    assert any(record.levelname == "ERROR" and record.message.startswith("http:k") for record in caplog.records)


def test_on_lambda_which_freezes_answers_wait_for_their_records(monkeypatch):
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_NAME", "orders")
    (answer,) = call(Leaving(lease=1, record_within=5).guarded, post("/orders", "k"))
    assert answer.status_code == 201
    assert "idempotency-recorded" not in answer.headers


HEAD = b"POST /a HTTP/1.1\r\nHost: localhost\r\n"
NEXT = b"GET /next HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
REFUSED = {
    "both headers": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both headers, the other way round": HEAD + b"Transfer-Encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "one length twice": HEAD + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a list of lengths": HEAD + b"Content-Length: 3, 3\r\n\r\nabc",
    "a folded line": HEAD + b"X-A: b\r\n c\r\nContent-Length: 0\r\n\r\n",
    "a bare LF in the head": HEAD + b"X-A: b\nContent-Length: 0\r\n\r\n",
    "a bare LF at its end": HEAD + b"Content-Length: 0\n\n",
    "chunks in HTTP/1.0": CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + b"0\r\n\r\n",
    "a chunk of a negative size": CHUNKED + b"-1\r\nabc\r\n0\r\n\r\n",
    "a chunk longer than its size": CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n",
    "a bare LF after a size": CHUNKED + b"3\nabc\r\n0\r\n\r\n",
    "a bare CR in an extension": CHUNKED + b"3;a\rb\r\nabc\r\n0\r\n\r\n",
    "a bare LF after the last chunk": CHUNKED + b"3\r\nabc\r\n0\r\n\n",
    "a folded trailer": CHUNKED + b"0\r\nX-A: b\r\n c\r\n\r\n",
    "an extension without an end": CHUNKED + b"3;" + 70_000 * b"a",
}


@pytest.fixture(scope="module")
def upstream():
    """A listener that nobody may connect to."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        yield listener


@pytest.fixture(scope="module", params=["proxy", "serve", "dashboard"])
def server(request, tmp_path_factory, upstream):
    store = f"sqlite:///{tmp_path_factory.mktemp('framing')}/ledger.db"
    subprocess.run([sys.executable, "-m", "onceward", "init", "--store", store], check=True)
    options = f"--upstream http://127.0.0.1:{upstream.getsockname()[1]} --name http --health / --scope everybody"
    more = options.split() if request.param == "proxy" else []
    with serving("onceward", request.param, "--store", store, "--port", "PORT", *more) as running:
        yield running


def answers(server, request):
    """Send bytes, and return the statuses that come until the server closes the connection, as it must."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        said = b""
        with contextlib.suppress(ConnectionError):  # it may close while more is on its way
            connection.sendall(request)
            while part := connection.recv(65536):
                said += part
        return re.findall(rb"HTTP/1\.1 (\d+) ", said)


@each("case", REFUSED)
def test_a_request_with_two_ends_is_refused_and_ends_its_connection(server, upstream, case):
    assert answers(server, REFUSED[case] + 2 * NEXT) == [b"400"]
    with pytest.raises(BlockingIOError):
        upstream.accept()


def test_what_follows_a_length_is_a_request_or_ends_the_connection(server):
    known = b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n"
    first, second = answers(server, known + b"evil and more\r\n\r\n" + NEXT)
    assert first != second == b"400"
