"""What is recorded, in every face: whether the endpoint began decides."""

import asyncio
from typing import Annotated

import flask
import httpx
import pytest
from django.http import HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from pydantic import BaseModel
from werkzeug.test import Client as WsgiClient

from onceward import Once
from onceward.core.record import COMPLETED, RELEASED
from onceward.web import Answer, AsgiIdempotency, Rules, Scope, WsgiIdempotency
from onceward.web import django as django_face
from onceward.web import fastapi as fastapi_face
from onceward.web import flask as flask_face

pytestmark = pytest.mark.sampled(face=3, status=2)

JSON = "application/json"


class Service:
    """What the endpoint of every face does, and how often it began."""

    def __init__(self, once, record, scope):
        more = {} if record is None else {"record": record}
        self.once, self.rules, self.status, self.runs = once, Rules(scope=scope, **more), 201, 0

    def run(self):
        self.runs += 1
        if self.status == "raises":
            raise LookupError
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
        except LookupError:
            return 500
        reply.get_data()
        return reply.status_code

    return send


def asgi(service):
    async def app(scope, receive, send):
        status = service.run()
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body"})

    return with_httpx(AsgiIdempotency(app, service.once, service.rules, name="n"))


def wsgi(service):
    def app(environ, start_response):
        start_response(f"{service.run()} X", [])
        return [b""]

    return with_werkzeug(WsgiIdempotency(app, service.once, service.rules, name="n"))


def flask_view(service):
    app = flask.Flask(__name__)

    @app.post("/orders")
    @flask_face.idempotent(service.once, service.rules, name="n")
    def order():
        parts = (str(1 // (service.status == "streams")) for _ in "ab")
        return flask.Response(parts) if service.status in {"streams", "breaks"} else ("", service.run())

    @app.after_request
    def audit(response):
        return {}[response] if response.is_streamed else response  # a KeyError, which is a LookupError

    return with_werkzeug(app)


class Payment(BaseModel):
    amount: int


def allowed(request: Request):
    if request.url.query == "nobody":
        raise HTTPException(403)


def fastapi_app(service, router):
    @router.post("/orders")
    def order(payment: Payment, _: Annotated[None, Depends(allowed)]):
        status = service.run()
        if status >= 400:
            raise HTTPException(status)
        return Response(status_code=status)

    app = FastAPI()
    app.include_router(router)
    return app


def fastapi_route(service):
    guarded = fastapi_face.idempotent_route(service.once, service.rules, name="n")
    return with_httpx(fastapi_app(service, APIRouter(route_class=guarded)))


def fastapi_middleware(service):
    app = fastapi_app(service, APIRouter())
    app.add_middleware(AsgiIdempotency, once=service.once, rules=service.rules, name="n")
    return with_httpx(app)


def with_django(decorate, *, middleware, service, is_async):
    def view(request):
        return HttpResponse(status=service.run())

    async def view_async(request):
        return view(request)

    urls = (path("orders", decorate(view_async if is_async else view)),)
    own = ["onceward.web.django.IdempotencyMiddleware"] if middleware else []
    guard = {"once": service.once, "rules": service.rules, "name": "n"}

    def send(url, body):
        headers = {"Idempotency-Key": "k"}
        with override_settings(ROOT_URLCONF=urls, MIDDLEWARE=own, ONCEWARD=guard):
            if is_async:
                client = AsyncClient(raise_request_exception=False)
                return asyncio.run(client.post(url, body, JSON, headers=headers)).status_code
            return Client(raise_request_exception=False).post(url, body, JSON, headers=headers).status_code

    return send


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


KNOWING = [flask_view, fastapi_route, django_view, django_view_async]
ROUTING = [fastapi_middleware, django_middleware, django_middleware_async]
FACES = [*KNOWING, *ROUTING, asgi, wsgi]

# what the endpoint does, record=, whether it is recorded by who knows that it began, and by who cannot tell
TABLE = [
    *((status, None, True, True) for status in (201, 302, 403, 404, 409, 422)),
    *((status, None, True, False) for status in (401, 408, 425, 429)),
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

    def served(face, record=None, scope=Scope.EVERYBODY):
        service = Service(once, record, scope)
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


UNROUTED = [("/nothing", b'{"amount": 1}', 404, face) for face in ROUTING]
INVALID = [("/orders", b'{"amount": "much"}', 422, face) for face in (fastapi_route, fastapi_middleware)]


@pytest.mark.parametrize("case", [*UNROUTED, *INVALID])
def test_a_request_that_routing_or_validation_refuses_may_be_corrected_under_its_key(serve, case):
    url, body, status, face = case
    service, send = serve(face, record=lambda status: True)
    assert send(url, body) == status
    assert statuses(service) == [RELEASED]
    assert send("/orders", b'{"amount": 2}') == 201
    assert service.runs == 1


def test_a_request_that_dependency_refuses_is_no_attempt_and_may_be_corrected_under_its_key(serve):
    service, send = serve(fastapi_route)
    assert [send("/orders?nobody", b'{"amount": 1}') for _ in range(2)] == [403, 403]
    ((record, _),) = service.once.ledger.records()
    assert (record.attempts, record.fingerprint) == (0, None)
    assert send("/orders", b'{"amount": 1}') == 201
    assert service.runs == 1


def test_a_refusal_does_not_free_the_input_of_an_earlier_run(serve):
    service, send = serve(fastapi_route)
    service.status = 500
    assert send("/orders", b'{"amount": 1}') == 500
    assert send("/orders", b'{"amount": 2}') == 422
    assert service.runs == 1
    ((record, _),) = service.once.ledger.records()
    assert (record.attempts, record.status) == (1, RELEASED)


@pytest.mark.parametrize(("status", "recorded"), [("streams", COMPLETED), ("breaks", RELEASED)])
def test_a_streamed_answer_of_flask_is_recorded_though_after_request_raises(serve, status, recorded):
    service, send = serve(flask_view)
    service.status = status
    assert send("/orders", b"{}") == 500
    assert statuses(service) == [recorded]
    flask.got_request_exception.send(None, exception=ValueError())  # by a program, outside of requests


@pytest.mark.parametrize("face", [asgi, flask_view, django_view, django_view_async, fastapi_route])
def test_a_scope_may_answer_by_itself(serve, face):
    answer = Answer(401, [("www-authenticate", "Bearer")], b"who are you?")
    service, send = serve(face, scope=lambda _: answer)
    assert send("/orders", b'{"amount": 1}') == 401
    assert (service.runs, statuses(service)) == (0, [])
