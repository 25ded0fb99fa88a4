"""The example payment service under real servers: clients that time out and retry, workers that are killed and restarted."""

import asyncio
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
from onceward.web import AsgiIdempotency, Route
from servers.needs import free_port
from tables import each
from timing import TRIES
from web.calls import Rules
from web.servers import check_charged_once, keyed, kill_one_that_pays, pay_all, payment, uvicorn


@pytest.fixture(params=["sqlite", "dynamodb"])
def ledger(request, tmp_path):
    """The environment of a payment service, and what reads the references of its charges."""
    if request.param == "sqlite":
        file = tmp_path / "payments.db"

        def references():
            with contextlib.closing(sqlite3.connect(file)) as connection:
                return [reference for (reference,) in connection.execute("SELECT reference FROM charges")]

        return {"LEDGER": f"sqlite:///{file}", "LEASE": "1.5"}, references
    dynoxide, url = request.getfixturevalue("dynoxide"), request.getfixturevalue("url")
    charges = dynoxide.table(f"charges-{time.time_ns()}", {"id": "S"})
    # Its clock counts seconds, and a lease has three of them at least.
    return {"LEDGER": url, "CHARGES": charges, "LEASE": "3"}, lambda: [
        item["reference"]["S"] for item in dynoxide.items(charges)
    ]


# --- charged once ---------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.sampled("dynamodb")
def test_clients_that_time_out_and_retry_are_charged_once(ledger):
    environment, references = ledger
    with uvicorn("payments_fastapi:app", "--workers", "3", **environment, BANK_SECONDS="0.6") as server:
        seen = pay_all(server, 24, 0.4, lambda: time.sleep(0.1))
    check_charged_once(environment["LEDGER"], references, 24)
    assert seen["timeout"] >= 24
    assert seen["replayed"] >= 24


@pytest.mark.sampled("sqlite")
def test_workers_that_are_killed_in_the_middle_leave_one_charge_per_key(ledger):
    environment, references = ledger
    store, killed = Once(environment["LEDGER"]).ledger, set()
    with uvicorn("web_asgi_slow:app", "--workers", "3", **environment, BANK_SECONDS="0.3") as server:
        seen = pay_all(server, 24, 5, lambda: kill_one_that_pays(store, killed, 3))
    records = check_charged_once(environment["LEDGER"], references, 24)
    assert len(killed) >= 3
    assert seen["broken"]
    assert any(record.attempts > 1 for record in records), "no worker was killed between its claim and its end"


@pytest.mark.nightly
@pytest.mark.sampled("sqlite")
def test_a_server_that_is_killed_and_restarted_leaves_one_charge_per_key(ledger):
    environment, references = ledger
    restarts = 0

    def restart():
        nonlocal restarts
        time.sleep(1.0)
        if restarts < 2:
            server.kill()
            server.start()
            restarts += 1

    with uvicorn("web_asgi_slow:app", "--workers", "2", **environment, BANK_SECONDS="0.3") as server:
        seen = pay_all(server, 24, 5, restart)
    records = check_charged_once(environment["LEDGER"], references, 24)
    assert seen["broken"]
    assert any(record.attempts > 1 for record in records), "the server was not killed between a claim and its end"


# --- clients that leave, servers that stop --------------------------------------------------------------------------


def test_payment_whose_client_left_is_charged_and_its_retry_gets_receipt(tmp_path):
    url = f"sqlite:///{tmp_path}/payments.db"
    with uvicorn("payments_fastapi:app", LEDGER=url, BANK_SECONDS="1") as server:
        request = ("/payments", payment("a"), keyed("k"))
        with pytest.raises(TimeoutError):
            server.post(*request, 0.3)
        # It waits for the first one's answer (wait=5), which nobody else waits for.
        status, fields, body = server.post(*request)
        assert (status, fields["idempotent-replayed"]) == (201, "true")
        again = server.post(*request)
        assert (again[0], again[2]) == (201, body)


def test_a_server_told_to_stop_waits_for_a_payment_whose_client_has_left(tmp_path):
    url = f"sqlite:///{tmp_path}/payments.db"
    with uvicorn("payments_fastapi:app", LEDGER=url, BANK_SECONDS="1") as server:
        with pytest.raises(TimeoutError):
            server.post("/payments", payment("a"), keyed("k"), 0.3)
        server.process.terminate()
        server.process.wait(30)
    (record,) = (record for record, _ in Once(url).ledger.records())
    assert record.status == COMPLETED


@pytest.mark.nightly
def test_a_server_whose_patience_ends_leaves_the_key_claimed(tmp_path):
    url = f"sqlite:///{tmp_path}/payments.db"
    options = ("--timeout-graceful-shutdown", "1")
    with uvicorn("web_asgi_slow:asleep", *options, LEDGER=url, LEASE="60") as server:
        with pytest.raises(TimeoutError):
            server.post("/sleep", b"", keyed("k"), 0.5)
        server.process.terminate()
        server.process.wait(30)
    assert Once(url).ledger.is_live("http:k:*")


# --- the wire -------------------------------------------------------------------------------------------------------


def test_a_streamed_answer_arrives_as_it_comes_and_is_replayed(tmp_path):
    def read(key):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("POST", "/stream", headers={"Idempotency-Key": key})
        reply = connection.getresponse()
        began = time.monotonic()
        assert reply.read() == b"".join(b"line %d\n" % number for number in range(5))
        connection.close()
        return time.monotonic() - began, reply.getheader("idempotent-replayed")

    with uvicorn("web_asgi_slow:streaming", LEDGER=f"sqlite:///{tmp_path}/payments.db") as server:
        for number in range(TRIES):  # a busy machine delays some
            (made, first), (sent, again) = read(f"k{number}"), read(f"k{number}")
            assert (first, again) == (None, "true")
            if made > 0.7 and sent < made / 2:
                return
    raise AssertionError("its head never came long before its end, or its replay was as slow")


@pytest.mark.nightly
def test_a_body_that_is_too_long_is_refused_while_it_is_sent(tmp_path):
    part = bytes(1 << 16)
    with uvicorn("payments_fastapi:app", LEDGER=f"sqlite:///{tmp_path}/payments.db") as server:
        with server.connection() as connection:
            connection.putrequest("POST", "/payments")
            connection.putheader("Idempotency-Key", "k")
            connection.putheader("Transfer-Encoding", "chunked")
            connection.endheaders()
            for _ in range(17):  # a MiB and a bit, of a body whose end never comes
                connection.send(b"%x\r\n%b\r\n" % (len(part), part))
            reply = connection.getresponse()
            assert reply.status == 413
            assert json.loads(reply.read())["type"].endswith("#too-large")
        assert server.post("/payments", b"{}", keyed("l"))[0] == 422


# --- frameworks -----------------------------------------------------------------------------------------------------


def starlette(once, rules):
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.middleware.base import BaseHTTPMiddleware
    from starlette.responses import JSONResponse
    from starlette.routing import Route as Path

    async def pay(request):
        return JSONResponse(paid(await request.json(), lambda: HTTPException(403)), 201)

    async def passing(request, call_next):
        return await call_next(request)

    # Also between middlewares that have tasks of their own.
    around = Middleware(BaseHTTPMiddleware, dispatch=passing)
    return Starlette(
        routes=[Path("/payments", pay, methods=["POST"])],
        middleware=[around, Middleware(AsgiIdempotency, once=once, rules=rules, name="http"), around],
    )


def fastapi(once, rules):
    from fastapi import FastAPI, HTTPException

    app = FastAPI()

    @app.post("/payments", status_code=201)
    def pay(payment: dict):
        return paid(payment, lambda: HTTPException(403))

    app.add_middleware(AsgiIdempotency, once=once, rules=rules, name="http")
    return app


def litestar(once, rules):
    from litestar import Litestar, Request, post
    from litestar.exceptions import HTTPException
    from litestar.middleware import DefineMiddleware

    @post("/payments")
    async def pay(request: Request) -> dict:
        return paid(await request.json(), lambda: HTTPException(status_code=403))

    return Litestar([pay], middleware=[DefineMiddleware(AsgiIdempotency, once=once, rules=rules, name="http")])


def quart(once, rules):
    from quart import Quart, abort, request

    app = Quart(__name__)

    @app.post("/payments")
    async def pay():
        await asyncio.sleep(0.2)  # Quart cancels a handler whose client has left
        return paid(await request.get_json(), lambda: abort(403)), 201

    app.asgi_app = AsgiIdempotency(app.asgi_app, once, rules, name="http")
    return app


RUNS = collections.Counter()


def paid(payment, refused):
    """Pay; an amount of 403 is refused with an exception of the framework's, and one of 500 fails."""
    amount = payment["amount"]
    RUNS[amount] += 1
    if amount == 403:
        raise refused()
    if amount == 500:
        raise LookupError
    return {"paid": amount, "run": RUNS[amount]}


@contextlib.contextmanager
def in_thread(app):
    """Serve an application with uvicorn in a thread, and give its port."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=free_port(), log_level="critical", lifespan="auto", ws="none"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield server.config.port
    finally:
        server.should_exit = True
        thread.join(30)


@each("framework", [starlette, fastapi, litestar, quart])
def test_every_framework_pays_once(framework):
    import httpx

    RUNS.clear()
    once = Once("memory:")
    app = framework(once, Rules(Route("/payments")))
    # uvicorn closes the connection after an answer whose application then raises, as Starlette's do.
    alone = {"Connection": "close"}
    with in_thread(app) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=alone) as client:

        def pay(amount, key, **how):
            while True:
                reply = client.post("/payments", json={"amount": amount}, headers=keyed(key), **how)
                if reply.status_code != 409:
                    return reply
                time.sleep(0.05)

        if framework is quart:
            with pytest.raises(httpx.TimeoutException):
                pay(5, "k", timeout=0.1)
        replies = [pay(5, "k"), pay(5, "k")]
        assert [(reply.status_code, reply.json()) for reply in replies] == [(201, {"paid": 5, "run": 1})] * 2
        assert ["idempotent-replayed" in reply.headers for reply in replies] == [framework is quart, True]
        refused = [pay(403, "l"), pay(403, "l")]
        assert [reply.status_code for reply in refused] == [403, 403]
        assert refused[0].content == refused[1].content
        assert [pay(500, "m").status_code for _ in range(2)] == [500, 500]
        assert pay(6, "k").status_code == 422
        missing = client.post("/payments", json={"amount": 5})
        assert missing.status_code == 400
        assert missing.headers["content-type"] == "application/problem+json"
        assert client.get("/payments").status_code == 405
        assert client.post("/other", json={}).status_code == 404
    assert RUNS == {5: 1, 403: 1, 500: 2}
