"""The example payment services under real servers, whose clients leave and which are stopped; and frameworks that have only the middleware."""

import collections
import contextlib
import http.client

import pytest

from onceward import Once
from onceward.core.record import COMPLETED
from onceward.web import AsgiIdempotency, Route
from tables import each
from waiting import until
from web.answering import Answering
from web.calls import Rules, call, post
from web.servers import gunicorn, keyed, payment, serving, uvicorn

FLASK, DJANGO = "payments_flask:app", "payments_django:application"
SERVERS = {
    "flask, threads, preloaded": (gunicorn, FLASK, "--workers", "2", "--threads", "6", "--preload"),
    "django, processes": (gunicorn, DJANGO, "--workers", "4"),
    "django under asgi": (uvicorn, "payments_django:asgi", "--workers", "2"),
    "fastapi": (uvicorn, "payments_fastapi:app"),
}


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/payments.db"


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


def test_a_proxy_told_to_stop_finishes_the_request_under_way(url):
    with contextlib.closing(Answering()) as upstream:
        command = f"onceward proxy --upstream {upstream.url} --name http --scope everybody --port PORT --store {url}"
        with serving(*command.split()) as server:
            upstream.pause = 1.0
            with pytest.raises(TimeoutError):
                server.post("/orders", b"{}", keyed("k"), 0.5)
            until(lambda: [path for _, path, _, _ in upstream.came if path == "/orders"])
            server.process.terminate()
            server.process.wait(60)
    assert [record.status for record, _ in Once(url).ledger.records()] == [COMPLETED]


def test_a_worker_that_takes_too_long_for_gunicorn_leaves_key_to_lease(url):
    with gunicorn(FLASK, "--timeout", "1", LEDGER=url, BANK_SECONDS="60", LEASE="60") as server:
        with contextlib.suppress(http.client.HTTPException, OSError):
            server.post("/payments", payment("a"), keyed("k"), 10)
        assert Once(url).ledger.is_live("payments:k:*")


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
