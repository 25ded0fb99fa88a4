"""The example payment service under a real server whose clients leave, and frameworks that have only the middleware."""

import asyncio
import collections
import contextlib
import threading
import time

import pytest

from onceward import Once
from onceward.core.record import COMPLETED
from onceward.web import AsgiIdempotency, Route
from servers.needs import free_port
from tables import each
from web.calls import Rules
from web.servers import keyed, payment, uvicorn


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


@each("framework", [litestar, quart])
def test_frameworks_without_a_face_of_their_own_pay_once(framework):
    import httpx

    RUNS.clear()
    once = Once("memory:")
    app = framework(once, Rules(Route("/payments")))
    with in_thread(app) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:

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
