"""The example payment services under real servers, whose clients leave and which are stopped; and frameworks that have only the middleware."""

import collections
import contextlib
import http.client
import json
import time

import pytest

from onceward import Once
from onceward.core.record import COMPLETED
from onceward.web import AsgiIdempotency, Route
from tables import each
from timing import TRIES
from web.calls import Rules, call, post
from web.servers import gunicorn, keyed, payment, uvicorn

FLASK, DJANGO = "payments_flask:app", "payments_django:application"
SYNC, THREADS = ("--workers", "4"), ("--workers", "2", "--threads", "6")
SERVERS = {
    "flask, processes": (gunicorn, FLASK, *SYNC),
    "flask, threads, preloaded": (gunicorn, FLASK, *THREADS, "--preload"),
    "django, processes, preloaded": (gunicorn, DJANGO, *SYNC, "--preload"),
    "django, threads": (gunicorn, DJANGO, *THREADS),
    "django under asgi": (uvicorn, "payments_django:asgi", "--workers", "2"),
    "fastapi": (uvicorn, "payments_fastapi:app"),
}


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/payments.db"


def test_payment_whose_client_left_is_charged_and_its_retry_gets_receipt(url):
    with uvicorn("payments_fastapi:app", LEDGER=url, BANK_SECONDS="1") as server:
        request = ("/payments", payment("a"), keyed("k"))
        with pytest.raises(TimeoutError):
            server.post(*request, 0.3)
        # It waits for the first one's answer (wait=5), which nobody else waits for.
        status, fields, body = server.post(*request)
        assert (status, fields["idempotent-replayed"]) == (201, "true")
        again = server.post(*request)
        assert (again[0], again[2]) == (201, body)


@pytest.mark.sampled("flask, threads, preloaded", "fastapi")
@pytest.mark.parametrize("served", SERVERS)
def test_a_server_told_to_stop_waits_for_a_payment_whose_client_has_left(url, served):
    start, *options = SERVERS[served]
    with start(*options, LEDGER=url, BANK_SECONDS="1") as server:
        with pytest.raises(TimeoutError):
            server.post("/payments", payment("a"), keyed("k"), 0.4)
        server.process.terminate()
        server.process.wait(120)  # gunicorn kills a worker after 30 s that it stopped as it began
    assert [record.status for record, _ in Once(url).ledger.records()] == [COMPLETED]


def test_a_worker_that_takes_too_long_for_gunicorn_leaves_key_to_lease(url):
    with gunicorn(FLASK, "--timeout", "1", LEDGER=url, BANK_SECONDS="60", LEASE="60") as server:
        with contextlib.suppress(http.client.HTTPException, OSError):
            server.post("/payments", payment("a"), keyed("k"), 10)
        assert Once(url).ledger.is_live("payments:k:*")


@pytest.fixture
def app(tmp_path, url):
    """The tests' own application under gunicorn, and what reads its effects."""
    log = tmp_path / "log"
    log.touch()
    options = ("--worker-class", "gthread", "--workers", "2", "--threads", "4")
    with gunicorn("web_wsgi_app:app", *options, LEDGER=url, LOG=str(log)) as server:
        server.effects = lambda: [line.split()[0] for line in log.read_text().splitlines()]
        yield server


def test_a_streamed_answer_arrives_as_it_is_made_and_is_replayed(app):
    def read(key):
        with app.connection() as connection:
            connection.request("POST", "/streamed", headers={"Idempotency-Key": key})
            reply = connection.getresponse()
            began = time.monotonic()
            assert reply.read() == b"".join(b"line %d\n" % number for number in range(5))
            return time.monotonic() - began, reply.getheader("idempotent-replayed")

    for number in range(TRIES):  # a busy machine delays some
        (made, first), (sent, again) = read(f"k{number}"), read(f"k{number}")
        assert (first, again) == (None, "true")
        assert len(app.effects()) == number + 1
        if made > 0.5 and sent < made / 2:
            return
    raise AssertionError("its head never came long before its end, or its replay was as slow")


def test_an_answer_that_fails_midway_is_torn_and_gives_the_key_back(app):
    for _ in range(2):
        with pytest.raises(http.client.IncompleteRead):
            app.post("/failing", headers={"Idempotency-Key": "k"})
    assert app.effects() == ["failing", "failing"]


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


def litestar(once, rules, paid):
    from litestar import Litestar, Request, post
    from litestar.exceptions import HTTPException
    from litestar.middleware import DefineMiddleware

    @post("/payments")
    async def pay(request: Request) -> dict:
        return paid(await request.json(), lambda: HTTPException(status_code=403))

    return Litestar([pay], middleware=[DefineMiddleware(AsgiIdempotency, once=once, rules=rules, name="http")])


def quart(once, rules, paid):
    from quart import Quart, abort, request

    app = Quart(__name__)

    @app.post("/payments")
    async def pay():
        return paid(await request.get_json(), lambda: abort(403)), 201

    app.asgi_app = AsgiIdempotency(app.asgi_app, once, rules, name="http")
    return app


@each("framework", [litestar, quart])
def test_frameworks_without_a_face_of_their_own_pay_once(framework):
    runs = collections.Counter()

    def paid(payment, refused):
        runs[amount := payment["amount"]] += 1
        if amount == 403:
            raise refused()
        if amount == 500:
            raise LookupError
        return {"paid": amount, "run": runs[amount]}

    app = framework(Once("memory:"), Rules(Route("/payments")), paid)
    asked = [(5, "k"), (5, "k"), (403, "l"), (403, "l"), (500, "m"), (500, "m"), (6, "k"), (5, None)]
    answers = call(app, *(post("/payments", key, json={"amount": amount}) for amount, key in asked))
    assert [answer.status_code for answer in answers] == [201, 201, 403, 403, 500, 500, 422, 400]
    assert [at for at, answer in enumerate(answers) if "idempotent-replayed" in answer.headers] == [1, 3]
    assert (answers[0].content, answers[2].content) == (answers[1].content, answers[3].content)
    assert runs == {5: 1, 403: 1, 500: 2}
