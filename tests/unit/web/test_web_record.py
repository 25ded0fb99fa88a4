"""What is recorded, in every face: whether the endpoint began decides."""

import asyncio
import inspect
from typing import Annotated

import flask
import httpx
import pytest
from django.http import HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi import routing as fastapi_routing
from fastapi.exceptions import RequestValidationError
from litestar import Litestar
from litestar import post as litestar_post
from litestar.exceptions import ValidationException
from litestar.middleware import DefineMiddleware
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route as StarletteRoute
from werkzeug.test import Client as WsgiClient

from onceward import Once
from onceward.aws import on_api
from onceward.core.record import COMPLETED, RELEASED
from onceward.web import AsgiIdempotency, Rules, Scope, WsgiIdempotency
from onceward.web import django as django_face
from onceward.web import fastapi as fastapi_face
from onceward.web import flask as flask_face
from web.api_events import http

pytestmark = pytest.mark.sampled(face=3)

VIEW = {}  # what Django's URLs lead to
JSON = "application/json"


class Broken(Exception):
    """What the endpoint raises."""


class Service:
    """What the endpoint of every face does, and how often it began."""

    def __init__(self, once, record):
        more = {} if record is None else {"record": record}
        self.once, self.rules, self.status, self.runs = once, Rules(scope=Scope.EVERYBODY, **more), 201, 0

    def run(self):
        self.runs += 1
        if self.status == "raises":
            raise Broken
        return self.status


def with_httpx(app):
    def send(url, body):
        async def main():
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                headers = {"Idempotency-Key": "k", "Content-Type": JSON}
                return (await client.post(url, content=body, headers=headers)).status_code

        return asyncio.run(main())

    return send


def with_werkzeug(app):
    def send(url, body):
        client = WsgiClient(app)
        try:
            reply = client.post(url, data=body, content_type=JSON, headers={"Idempotency-Key": "k"})
        except Broken:
            return 500
        reply.get_data()
        return reply.status_code

    return send


def asgi(service):
    async def app(scope, receive, send):
        status = service.run()
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body"})

    async def outside(scope, receive, send):
        try:
            await guarded(scope, receive, send)
        except Broken:
            await send({"type": "http.response.start", "status": 500, "headers": []})
            await send({"type": "http.response.body"})

    guarded = AsgiIdempotency(app, service.once, service.rules, name="n")
    return with_httpx(outside)


def wsgi(service):
    def app(environ, start_response):
        start_response(f"{service.run()} X", [])
        return [b""]

    return with_werkzeug(WsgiIdempotency(app, service.once, service.rules, name="n"))


def function(service):
    def handler(event, context=None):
        return {"statusCode": service.run()}

    def send(url, body):
        try:
            return guarded(http(url, body=body.decode(), headers=[("Idempotency-Key", "k")]))["statusCode"]
        except Broken:
            return 500

    guarded = on_api(service.once, service.rules, name="n")(handler)
    return send


def flask_app(service, decorate):
    app = flask.Flask(__name__)

    @app.post("/orders")
    @decorate
    def order():
        return "", service.run()

    return app


def flask_view(service):
    guard = flask_face.idempotent(service.once, service.rules, name="n")
    return with_werkzeug(flask_app(service, guard))


def flask_middleware(service):
    app = flask_app(service, lambda view: view)
    return with_werkzeug(WsgiIdempotency(app, service.once, service.rules, name="n"))


class Payment(BaseModel):
    amount: int


def allowed(request: Request):
    if request.url.query == "nobody":
        raise HTTPException(403)


def fastapi_app(service, router, **more):
    @router.post("/orders", **more)
    def order(payment: Payment, _: Annotated[None, Depends(allowed)]):
        status = service.run()
        if status >= 400:
            raise HTTPException(status)
        return Response(status_code=status)

    app = FastAPI()
    app.include_router(router)
    return app


def fastapi_route(service):
    return with_httpx(
        fastapi_app(
            service, APIRouter(route_class=fastapi_face.idempotent_route(service.once, service.rules, name="n"))
        )
    )


def fastapi_dependency(service):
    guard = fastapi_face.idempotent(service.once, service.rules, name="n")
    router = APIRouter(route_class=fastapi_face.IdempotentRoute)
    return with_httpx(fastapi_app(service, router, dependencies=[Depends(guard)]))


def fastapi_middleware(service):
    app = fastapi_app(service, APIRouter())
    app.add_middleware(AsgiIdempotency, once=service.once, rules=service.rules, name="n")
    return with_httpx(app)


def view(request):
    return VIEW["now"](request)


async def view_async(request):
    return await VIEW["now"](request)


urlpatterns = [path("orders", view), path("later", view_async)]


def with_django(decorate, *, middleware, service, is_async):
    VIEW["now"] = decorate(plain_async(service) if is_async else plain(service))
    own = ["onceward.web.django.IdempotencyMiddleware"] if middleware else []
    guard = {"once": service.once, "rules": service.rules, "name": "n"}

    def send(url, body):
        headers = {"Idempotency-Key": "k"}
        with override_settings(ROOT_URLCONF=__name__, MIDDLEWARE=own, ONCEWARD=guard):
            if is_async:
                client = AsyncClient(raise_request_exception=False)
                url = url.replace("/orders", "/later")
                return asyncio.run(client.post(url, body, JSON, headers=headers)).status_code
            return Client(raise_request_exception=False).post(url, body, JSON, headers=headers).status_code

    return send


def plain(service):
    return lambda request: HttpResponse(status=service.run())


def plain_async(service):
    async def later(request):
        return HttpResponse(status=service.run())

    return later


def django_middleware(service):
    return with_django(lambda view: view, middleware=True, service=service, is_async=False)


def django_middleware_async(service):
    return with_django(lambda view: view, middleware=True, service=service, is_async=True)


def django_view(service):
    guard = django_face.idempotent(service.once, service.rules, name="n")
    return with_django(guard, middleware=False, service=service, is_async=False)


def django_view_async(service):
    guard = django_face.idempotent(service.once, service.rules, name="n")
    return with_django(guard, middleware=False, service=service, is_async=True)


KNOWING = [flask_view, fastapi_route, fastapi_dependency, django_view, django_view_async]
ROUTING = [flask_middleware, fastapi_middleware, django_middleware, django_middleware_async]
FACES = [*KNOWING, *ROUTING, asgi, wsgi, function]
FASTAPI = [fastapi_route, fastapi_dependency, fastapi_middleware]

# what the endpoint does, record=, whether it is recorded by who knows that it began, and by who cannot tell
TABLE = [
    (201, None, True, True),
    (302, None, True, True),
    (403, None, True, True),
    (404, None, True, True),
    (409, None, True, True),
    (422, None, True, True),
    (401, None, True, False),
    (408, None, True, False),
    (425, None, True, False),
    (429, None, True, False),
    (500, None, False, False),
    ("raises", None, False, False),
    (500, [201, 500], True, True),
    ("raises", [201, 500], True, True),
    ("raises", lambda status: True, True, True),
    (404, [201, 500], False, False),
    (401, [201, 401], True, True),
]


@pytest.fixture
def serve():
    once = Once("memory:")

    def served(face, record=None):
        service = Service(once, record)
        return service, face(service)

    yield served
    once.close()


def statuses(service):
    return [record.status for record, _ in service.once.ledger.records()]


@pytest.mark.slow
@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}-{row[2]}-{row[3]}")
def test_what_an_endpoint_answers_is_recorded(serve, face, row):
    does, record, knowing, unsure = row
    service, send = serve(face, record)
    service.status = does
    first = send("/orders", b'{"amount": 1}')
    is_recorded = knowing if face in KNOWING else unsure
    assert statuses(service) == [COMPLETED if is_recorded else RELEASED]
    assert service.runs == 1
    second = send("/orders", b'{"amount": 1}')
    assert service.runs == (1 if is_recorded else 2)
    assert first == second == (500 if does == "raises" else does)


@pytest.mark.parametrize("record", [None, lambda status: True], ids=["default", "all"])
@pytest.mark.parametrize("face", [flask_middleware, fastapi_middleware, django_middleware, django_middleware_async])
def test_a_request_that_routing_refuses_may_be_corrected_under_its_key(serve, face, record):
    service, send = serve(face, record)
    assert send("/nothing", b'{"amount": 1}') == 404
    assert send("/orders", b'{"amount": 2}') == 201
    assert service.runs == 1


@pytest.mark.parametrize("record", [None, lambda status: True], ids=["default", "all"])
@pytest.mark.parametrize("face", FASTAPI)
def test_a_request_that_is_not_valid_may_be_corrected_under_its_key(serve, face, record):
    service, send = serve(face, record)
    assert send("/orders", b'{"amount": "much"}') == 422
    assert statuses(service) == [RELEASED]
    assert send("/orders", b'{"amount": 2}') == 201
    assert service.runs == 1


@pytest.mark.parametrize("face", [fastapi_route, fastapi_dependency])
def test_a_request_that_dependency_refuses_may_be_corrected_under_its_key(serve, face):
    service, send = serve(face)
    assert send("/orders?nobody", b'{"amount": 1}') == 403
    assert send("/orders", b'{"amount": 1}') == 201
    assert service.runs == 1


def test_a_refusal_is_no_attempt(serve):
    service, send = serve(fastapi_route)
    for _ in range(3):
        send("/orders?nobody", b'{"amount": 1}')
    ((record, _),) = service.once.ledger.records()
    assert (record.attempts, record.fingerprint) == (0, None)


def test_a_refusal_does_not_free_the_input_of_an_earlier_run(serve):
    service, send = serve(fastapi_route)
    service.status = 500
    assert send("/orders", b'{"amount": 1}') == 500
    assert send("/orders", b'{"amount": 2}') == 422
    assert service.runs == 1
    ((record, _),) = service.once.ledger.records()
    assert (record.attempts, record.status) == (1, RELEASED)


# --- what only looks like a refusal -----------------------------------------------------------------------------------


def twice(app, runs):
    send = with_httpx(app)
    first, second = (send("/orders", b'{"amount": 1}') for _ in range(2))
    assert first == second
    assert len(runs) == 1
    return first


def test_a_validation_error_raised_after_an_endpoints_effect_is_recorded(serve):
    service, _ = serve(asgi)
    runs = []
    app = FastAPI()

    @app.post("/orders")
    async def order():
        runs.append(1)
        raise RequestValidationError([{"loc": ("body",), "msg": "no such order", "type": "value_error"}])

    app.add_middleware(AsgiIdempotency, once=service.once, rules=service.rules, name="n")
    assert twice(app, runs) == 422


@pytest.mark.parametrize("sync", [True, False])
def test_validation_error_raised_by_litestar_after_its_effect_is_recorded(serve, sync):
    service, _ = serve(asgi)
    runs = []

    def charge() -> None:
        runs.append(1)
        raise ValidationException("no such order")

    async def charge_async() -> None:
        charge()

    handler = litestar_post("/orders", sync_to_thread=True)(charge) if sync else litestar_post("/orders")(charge_async)
    guard = DefineMiddleware(AsgiIdempotency, once=service.once, rules=service.rules, name="n")
    assert twice(Litestar([handler], middleware=[guard]), runs) == 400


@pytest.mark.filterwarnings("ignore:.*deprecated inferred style")
def test_a_request_that_litestar_refuses_may_be_corrected_under_its_key(serve):
    service, _ = serve(asgi)
    runs = []

    @litestar_post("/orders")
    async def order(amount: int) -> None:
        runs.append(amount)

    guard = DefineMiddleware(AsgiIdempotency, once=service.once, rules=service.rules, name="n")
    send = with_httpx(Litestar([order], middleware=[guard]))
    assert [send("/orders?amount=much", b""), send("/orders?amount=2", b"")] == [400, 201]
    assert runs == [2]


@pytest.mark.parametrize("status", [404, 405])
def test_an_endpoint_behind_middleware_that_copies_the_scope_is_found(serve, status):
    service, _ = serve(asgi)
    runs = []

    async def order(request):
        runs.append(1)
        raise HTTPException(status)

    class Copying:
        def __init__(self, app):
            self.app = app

        async def __call__(self, scope, receive, send):
            await self.app(dict(scope), receive, send)

    guard = Middleware(AsgiIdempotency, once=service.once, rules=service.rules, name="n")
    app = Starlette(
        routes=[StarletteRoute("/orders", order, methods=["POST"])], middleware=[guard, Middleware(Copying)]
    )
    assert twice(app, runs) == status


def charging(service, runs):
    router = APIRouter(route_class=fastapi_face.idempotent_route(service.once, service.rules, name="n"))

    @router.post("/orders")
    def order(payment: Payment):
        runs.append(1)
        raise HTTPException(404)

    app = FastAPI()
    app.include_router(router)
    return app


def test_an_endpoint_is_known_to_have_begun_behind_a_wrapping_integration(serve, monkeypatch):
    make = fastapi_routing.get_request_handler

    def patched(*args, **settings):
        handler = make(*args, **settings)

        async def watched(*args, **kwargs):
            return await handler(*args, **kwargs)

        return watched

    monkeypatch.setattr(fastapi_routing, "get_request_handler", patched)
    service, _ = serve(asgi)
    runs = []
    assert twice(charging(service, runs), runs) == 404


def test_whether_an_endpoint_began_is_unknown_if_it_was_replaced_later(serve, monkeypatch):
    handlers, make = [], fastapi_routing.get_request_handler

    def noted(*args, **settings):
        handlers.append(make(*args, **settings))
        return handlers[-1]

    monkeypatch.setattr(fastapi_routing, "get_request_handler", noted)
    service, _ = serve(asgi)
    runs = []
    app = charging(service, runs)
    with_httpx(app)("/nothing", b"")  # newer versions of FastAPI include routers at the first request
    for handler in handlers:
        dependant = inspect.getclosurevars(handler).nonlocals["dependant"]
        dependant.call = inspect.unwrap(dependant.call)
    assert twice(app, runs) == 404
