"""In every face: which requests are guarded, however they are written; and no effect is repeated when ``record=`` raises."""

import asyncio

import flask
import litestar
import pytest
import quart
from fastapi import FastAPI, HTTPException
from fastapi import routing as fastapi_routing
from fastapi.exceptions import RequestValidationError
from httpx import ASGITransport, AsyncClient
from litestar.exceptions import ValidationException
from litestar.middleware import DefineMiddleware
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import StreamingResponse
from starlette.routing import Route as StarletteRoute
from werkzeug.test import EnvironBuilder

from onceward.core.record import COMPLETED
from onceward.web import AsgiIdempotency as Guard
from onceward.web import Route
from onceward.web import fastapi as of_fastapi
from web import asgi, wsgi
from web.calls import AsgiIdempotency, Rules, WsgiIdempotency, call, guards, post

pytestmark = pytest.mark.sampled(target=2)

idempotent_route = guards(of_fastapi.idempotent_route)


def test_a_method_in_small_letters_is_guarded_as_frameworks_capitalize_it(once):
    shop = wsgi.Shop()
    guarded = WsgiIdempotency(shop, once)
    for _ in range(2):
        wsgi.ask(guarded, REQUEST_METHOD="post")
    assert shop.runs == 1

    counter = asgi.Counter()
    under_asgi = AsgiIdempotency(counter, once, name="other")
    for _ in range(2):
        asgi.run(asgi.ask(under_asgi, method="post"))
    assert counter.runs == 1


def test_under_wsgi_a_request_that_no_route_covers_passes_through_untouched(once):
    guarded = WsgiIdempotency(lambda environ, start: environ, once, Rules(Route("/orders")))
    for given in (wsgi.environ(REQUEST_METHOD="GET"), wsgi.environ(PATH_INFO="/other", key=None)):
        assert guarded(given, None) is given
        assert given["wsgi.input"].left == b"{}"


@pytest.mark.parametrize("target", ["http://test/orders", "http://test//orders", "orders", "/orders"])
@pytest.mark.parametrize("framework", ["quart", "litestar", "flask"])
def test_a_whole_url_or_a_path_without_its_slash_does_not_go_round_guard(once, framework, target):
    runs = []

    def order() -> str:
        runs.append(1)
        return "done"

    async def order_async() -> str:
        return order()

    rules = Rules(Route("/orders"))
    if framework == "flask":
        app = flask.Flask(__name__)
        app.post("/orders")(order)
        answers = [wsgi_target(WsgiIdempotency(app, once, rules), target) for _ in range(2)]
    else:
        quart_app = quart.Quart(__name__)
        quart_app.post("/orders")(order_async)
        app = quart_app if framework == "quart" else litestar.Litestar([litestar.post("/orders")(order_async)])
        answers = [asyncio.run(asgi_target(AsgiIdempotency(app, once, rules), target)) for _ in range(2)]
    assert len(runs) == (answers[0] < 400)
    assert answers[0] == answers[1]


def wsgi_target(app, target):
    environ = EnvironBuilder("/", method="POST", headers={"Idempotency-Key": "k"}).get_environ()
    given = []
    body = app(environ | {"PATH_INFO": target}, lambda status, *_: given.append(int(status[:3])))
    list(body)
    return given[0]


async def asgi_target(app, target):
    async def targeted(scope, receive, send):
        await app({**scope, "path": target, "raw_path": target.encode()}, receive, send)

    async with AsyncClient(transport=ASGITransport(targeted), base_url="http://test") as client:
        return (await client.post("/", headers={"Idempotency-Key": "k"})).status_code


def test_an_effect_is_not_repeated_because_record_raises(once, caplog):
    def broken(status):
        raise ZeroDivisionError(status)

    guarded = AsgiIdempotency(asgi.Counter(), once, Rules(record=broken))
    answers = [asgi.run(asgi.ask(guarded)) for _ in range(2)]
    assert [(answer.status, answer.body) for answer in answers] == [(201, b'{"run":1}')] * 2
    assert asgi.statuses(once) == [COMPLETED]
    assert "ZeroDivisionError" in caplog.text


def twice(app, runs):
    request = post("/orders", "k", json={"amount": 1})
    first, second = (answer.status_code for answer in call(app, request, request))
    assert first == second
    assert len(runs) == 1
    return first


def test_a_validation_error_raised_after_an_endpoints_effect_is_recorded(once):
    runs = []
    app = FastAPI()

    @app.post("/orders")
    async def order():
        runs.append(1)
        raise RequestValidationError([{"loc": ("body",), "msg": "no such order", "type": "value_error"}])

    app.add_middleware(Guard, once=once, rules=Rules(), name="n")
    assert twice(app, runs) == 422


def test_validation_error_raised_by_litestar_after_its_effect_is_recorded(once):
    runs = []

    @litestar.post("/orders")
    async def charge() -> None:
        runs.append(1)
        raise ValidationException("no such order")

    guard = DefineMiddleware(Guard, once=once, rules=Rules(), name="n")
    assert twice(litestar.Litestar([charge], middleware=[guard]), runs) == 400


def test_an_endpoint_behind_middleware_that_copies_the_scope_is_found(once):
    runs = []

    async def order(request):
        runs.append(1)
        raise HTTPException(404)

    class Copying:
        def __init__(self, app):
            self.app = app

        async def __call__(self, scope, receive, send):
            await self.app(dict(scope), receive, send)

    guard = Middleware(Guard, once=once, rules=Rules(), name="n")
    routes = [StarletteRoute("/orders", order, methods=["POST"])]
    app = Starlette(routes=routes, middleware=[guard, Middleware(Copying)])
    assert twice(app, runs) == 404


def test_a_stream_that_fails_inside_two_base_middlewares_is_not_replayed_as_a_whole_one(once):
    async def order(request):
        async def parts():
            yield b"one"
            raise LookupError

        return StreamingResponse(parts())

    base = Middleware(BaseHTTPMiddleware, dispatch=lambda request, call_next: call_next(request))
    guard = Middleware(Guard, once=once, rules=Rules(), name="n")
    app = Starlette(routes=[StarletteRoute("/orders", order, methods=["POST"])], middleware=[guard, base, base])
    with pytest.raises(LookupError):
        asgi.asked(app)
    assert asgi.asked(app)[0].problem == "unavailable"


def test_an_endpoint_is_known_to_have_begun_behind_a_wrapping_integration(once, monkeypatch):
    make = fastapi_routing.get_request_handler

    def patched(*args, **settings):
        handler = make(*args, **settings)

        async def watched(*args, **kwargs):
            return await handler(*args, **kwargs)

        return watched

    monkeypatch.setattr(fastapi_routing, "get_request_handler", patched)
    app, runs = FastAPI(), []
    app.router.route_class = idempotent_route(once, name="n")

    @app.post("/orders")
    def order(payment: dict):
        runs.append(1)
        raise HTTPException(404)

    assert twice(app, runs) == 404
