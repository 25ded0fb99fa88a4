"""The example payment services under gunicorn, and Django's under uvicorn: clients that time out and retry, workers that die."""

import collections
import contextlib
import http.client
import json
import sqlite3
import threading
import time

import pytest

from onceward import Once
from onceward.core.record import COMPLETED
from timing import TRIES
from waiting import until
from web.servers import check_charged_once, gunicorn, keyed, kill_one_that_pays, pay_all, payment, uvicorn

FLASK, DJANGO = "payments_flask:app", "payments_django:application"
SYNC, THREADS = ("--workers", "4"), ("--workers", "2", "--threads", "6")
BEFORE_FORK = ("--preload",)
LINES = b"".join(b"line %d\n" % number for number in range(5))


def served_by(module, options):
    """Return what starts a server of the service."""
    return lambda **environment: gunicorn(module, *options, **environment)


SERVERS = {
    "flask, processes": served_by(FLASK, SYNC),
    "flask, threads, preloaded": served_by(FLASK, THREADS + BEFORE_FORK),
    "django, processes, preloaded": served_by(DJANGO, SYNC + BEFORE_FORK),
    "django, threads": served_by(DJANGO, THREADS),
    "django under asgi": lambda **environment: uvicorn("payments_django:asgi", "--workers", "2", **environment),
}


@pytest.fixture(params=SERVERS)
def served(request):
    return SERVERS[request.param]


@pytest.fixture
def sqlite(tmp_path):
    """The environment of a payment service, and what reads the references of its charges."""
    file = tmp_path / "payments.db"

    def references():
        with contextlib.closing(sqlite3.connect(file)) as connection:
            return [reference for (reference,) in connection.execute("SELECT reference FROM charges")]

    return {"LEDGER": f"sqlite:///{file}", "LEASE": "1.5"}, references


@pytest.fixture
def dynamodb(dynoxide, url):
    """As above; its clock counts seconds, and a lease has three of them at least."""
    charges = dynoxide.table(f"charges-{time.time_ns()}", {"id": "S"})
    environment = {"LEDGER": url, "CHARGES": charges, "LEASE": "3"}
    return environment, lambda: [item["reference"]["S"] for item in dynoxide.items(charges)]


PAIRS = [
    ("flask, processes", "sqlite"),
    ("flask, processes", "dynamodb"),
    ("flask, threads, preloaded", "dynamodb"),
    ("django, processes, preloaded", "dynamodb"),
    ("django, threads", "sqlite"),
    ("django under asgi", "sqlite"),
    ("django under asgi", "dynamodb"),
]


@pytest.fixture(params=PAIRS, ids=" on ".join)
def pair(request):
    server, store = request.param
    return SERVERS[server], *request.getfixturevalue(store)


@pytest.mark.sampled("flask, threads, preloaded on dynamodb")
def test_workers_that_are_killed_in_the_middle_leave_one_charge_per_key(pair):
    served, environment, references = pair
    ledger, killed = Once(environment["LEDGER"]).ledger, set()
    with served(**environment, BANK_SECONDS="0.3") as server:
        pay_all(server, 12, 5, lambda: kill_one_that_pays(ledger, killed, 2))
    records = check_charged_once(environment["LEDGER"], references, 12)
    assert len(killed) >= 2
    assert any(record.attempts > 1 for record in records), "no worker was killed between its claim and its end"


@pytest.mark.sampled("flask, threads, preloaded")
def test_a_server_told_to_stop_waits_for_a_payment_whose_client_has_left(tmp_path, served):
    url = f"sqlite:///{tmp_path}/payments.db"
    with served(LEDGER=url, BANK_SECONDS="1") as server:
        with pytest.raises(TimeoutError):
            server.post("/payments", payment("a"), keyed("k"), 0.4)
        server.process.terminate()
        server.process.wait(120)  # gunicorn kills a worker after 30 s that it stopped as it began
    assert [record.status for record, _ in Once(url).ledger.records()] == [COMPLETED]


def test_a_worker_that_takes_too_long_for_gunicorn_leaves_key_to_lease(tmp_path):
    url = f"sqlite:///{tmp_path}/payments.db"
    with gunicorn(FLASK, "--timeout", "1", LEDGER=url, BANK_SECONDS="60", LEASE="60") as server:
        with contextlib.suppress(http.client.HTTPException, OSError):
            server.post("/payments", payment("a"), keyed("k"), 10)
        assert Once(url).ledger.is_live("payments:k:*")


@pytest.fixture(params=["sync", "gthread"])
def app(request, tmp_path):
    """The tests' own application under gunicorn, and what reads its effects."""
    log = tmp_path / "log"
    log.touch()
    options = ("--worker-class", request.param, "--workers", "2", "--threads", "1" if request.param == "sync" else "4")
    environment = {"LEDGER": f"sqlite:///{tmp_path}/ledger.db", "LOG": str(log)}
    with gunicorn("web_wsgi_app:app", *options, **environment) as server:
        server.effects = lambda: [line.split()[0] for line in log.read_text().splitlines()]
        yield server


@pytest.mark.sampled("gthread")
@pytest.mark.parametrize("path", ["/streamed", "/streamed?length", "/written"])
def test_a_streamed_answer_arrives_as_it_is_made_and_is_replayed(app, path):
    def read(key):
        with app.connection() as connection:
            connection.request("POST", path, headers={"Idempotency-Key": key})
            reply = connection.getresponse()
            began = time.monotonic()
            assert reply.read() == LINES
            return time.monotonic() - began, reply.getheader("idempotent-replayed")

    for number in range(TRIES):  # a busy machine delays some
        (made, first), (sent, again) = read(f"k{number}"), read(f"k{number}")
        assert (first, again) == (None, "true")
        assert len(app.effects()) == number + 1
        if made > 0.5 and sent < made / 2:
            return
    raise AssertionError("its head never came long before its end, or its replay was as slow")


@pytest.mark.sampled("gthread")
@pytest.mark.parametrize("path", ["/streamed", "/written"])
def test_a_client_that_leaves_amid_an_answer_does_not_lose_the_effect(app, path):
    with app.connection() as connection:
        connection.request("POST", path, headers={"Idempotency-Key": "k"})
        reply = connection.getresponse()
        assert reply.read(5) == b"line "
        reply.close()
    until(app.effects)
    until(lambda: app.post(path, headers={"Idempotency-Key": "k"})[0] == 200)
    status, fields, body = app.post(path, headers={"Idempotency-Key": "k"})
    assert (status, fields["idempotent-replayed"], body) == (200, "true", LINES)
    assert len(app.effects()) == 1


@pytest.mark.sampled("gthread")
def test_an_answer_that_fails_midway_is_torn_and_gives_the_key_back(app):
    for _ in range(2):
        with pytest.raises(http.client.IncompleteRead):
            app.post("/failing", headers={"Idempotency-Key": "k"})
    assert app.effects() == ["failing", "failing"]


@pytest.mark.sampled("gthread")
def test_a_chunked_body_is_read_and_compared_and_limited(app):
    def send(*parts):
        headers = {"Idempotency-Key": "k", "Transfer-Encoding": "chunked"}
        status, _, body = app.post("/told", iter(parts), headers, encode_chunked=True)
        return status, body if status == 200 else json.loads(body)["type"].partition("#")[2]

    assert send(b"x" * 600, b"y" * 601) == (413, "too-large")
    assert send(b"x" * 400, b"y" * 500) == (200, b"900")
    assert send(b"x" * 400 + b"y" * 500) == (200, b"900")
    assert send(b"x" * 401, b"y" * 499) == (422, "reused")
    assert app.effects() == ["told"]


@pytest.mark.sampled("gthread")
def test_a_request_whose_sender_leaves_before_its_end_is_not_carried_out(app):
    with app.connection() as connection:
        connection.putrequest("POST", "/told")
        connection.putheader("Idempotency-Key", "k")
        connection.putheader("Content-Length", "100")
        connection.endheaders(b"x" * 50)
    assert app.post("/told", b"x" * 100, {"Idempotency-Key": "k"})[::2] == (200, b"100")
    assert app.effects() == ["told"]


@pytest.mark.sampled("sqlite")
@pytest.mark.parametrize("store", ["sqlite", "dynamodb"])
def test_a_ledger_used_before_the_workers_were_forked_works_in_them(store, request, tmp_path):
    url = f"sqlite:///{tmp_path}/ledger.db" if store == "sqlite" else request.getfixturevalue("url")
    log = tmp_path / "log"
    log.touch()
    with gunicorn("web_wsgi_app:app", *SYNC, *BEFORE_FORK, LEDGER=url, LOG=str(log)) as server:

        def send(key):
            answers.extend((key, server.post("/told", b"xyz", {"Idempotency-Key": key})[::2]) for _ in range(3))

        answers = []
        threads = [threading.Thread(target=send, args=(f"key-{number}",)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        sent = 20
        while len(set(log.read_text().splitlines())) == 1 and sent < 1000:  # all was done by one worker
            send(f"key-{sent}")
            sent += 1
    assert collections.Counter(answers) == {(f"key-{number}", (200, b"3")): 3 for number in range(sent)}
    effects = log.read_text().splitlines()
    assert len(effects) == sent
    assert len(set(effects)) > 1, "all was done by one worker"
