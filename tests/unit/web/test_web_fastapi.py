"""FastAPI: guards of single endpoints, the middleware around them, what would be unguarded, what OpenAPI says; and the views of Flask."""

import warnings
from contextlib import nullcontext
from typing import Annotated

import pytest
from fastapi import APIRouter, Depends, FastAPI
from fastapi import Request as FastRequest
from fastapi.responses import PlainTextResponse
from flask import Flask, Response, request, stream_with_context
from starlette.endpoints import HTTPEndpoint
from starlette.routing import Route as StarletteRoute
from starlette.staticfiles import StaticFiles

from onceward import Claim, Once, current
from onceward.core.record import COMPLETED, IN_PROGRESS
from onceward.observe import Event
from onceward.web import Answer, AsgiIdempotency, Route
from onceward.web import fastapi as of_fastapi
from onceward.web import flask as of_flask
from onceward.web.fastapi import IdempotentRoute, answer, unguarded
from tables import each
from web import asgi
from web.asgi import statuses
from web.calls import Rules, call, guards, post

idempotent, idempotent_route = guards(of_fastapi.idempotent), guards(of_fastapi.idempotent_route)


@pytest.fixture
def runs():
    return []


@pytest.fixture
def app():
    made = FastAPI()
    made.router.route_class = IdempotentRoute
    return made


def test_an_endpoint_is_guarded_by_its_dependency_which_gives_the_claim(app, once, runs):
    @app.post("/pay", status_code=201)
    async def pay(payment: dict, claim: Annotated[Claim, Depends(idempotent(once))]):
        runs.append(claim.record.key)
        return {"run": len(runs), "paid": payment["amount"]}

    @app.post("/free")
    async def free(): ...

    content = {"amount": 1}
    first, second, missing, reused, other = call(
        app,
        post("/pay", "k", json=content),
        post("/pay", "k", json=content),
        post("/pay", json=content),
        post("/pay", "k", json={"amount": 2}),
        post("/free"),
    )
    assert (first.status_code, first.json()) == (second.status_code, second.json()) == (201, {"run": 1, "paid": 1})
    assert second.headers["idempotent-replayed"] == "true"
    assert [missing.status_code, reused.status_code, other.status_code] == [400, 422, 200]
    assert runs == ["http:k:*"]
    assert statuses(once) == [COMPLETED]


def test_a_dependency_that_guards_nothing_says_so_before_endpoint_runs(once, runs):
    app = FastAPI()

    @app.post("/plain", dependencies=[Depends(idempotent(once))])
    async def plain():
        runs.append("ran")

    with pytest.raises(RuntimeError, match=r"^/plain: .*guards nothing.*route_class=IdempotentRoute"):
        call(app, post("/plain", "k"))
    assert (runs, statuses(once)) == ([], [])


@each("name", (None, "audit"))
def test_a_request_that_the_middleware_guards_is_not_guarded_again(once, runs, name):
    rules = Rules(Route(key="body.id"))
    app = FastAPI()
    app.router.route_class = idempotent_route(once, rules)

    @app.middleware("http")
    async def between(request, call_next):
        async with nullcontext() if name is None else Once("memory:").claim("seen", name=name):
            return await call_next(request)

    @app.post("/a")
    async def a(what: dict, claim: Annotated[Claim, Depends(current)]):
        runs.append(claim.record.key)
        return {"what": what, "run": len(runs)}

    app.add_middleware(AsgiIdempotency, once=once, rules=rules, name="http")
    first, second = call(app, *[post("/a", "k", json={"id": "7", "text": "x" * 100_000})] * 2)
    assert (first.status_code, first.json()) == (second.status_code, second.json())
    assert (first.status_code, len(runs), statuses(once)) == (200, 1, [COMPLETED])


def test_a_scope_that_is_sent_again_is_guarded_again(app, once, runs):
    @app.post("/pay", dependencies=[Depends(idempotent(once))])
    async def pay():
        runs.append("ran")

    async def twice():
        scope = asgi.scope(path="/pay")
        for _ in range(2):
            client = asgi.Client()
            await app(scope, client.receive, client.send)
        return client

    assert asgi.run(twice()).headers["idempotent-replayed"] == "true"
    assert runs == ["ran"]


def test_a_scope_that_is_copied_for_another_request_is_guarded_for_itself(app, once, runs):
    guard = Depends(idempotent(once))

    @app.post("/pay", dependencies=[guard])
    async def pay():
        runs.append("ran")

    @app.post("/batch", dependencies=[guard])
    async def batch(request: FastRequest):
        copied = {**request.scope, "path": "/pay", "headers": [(b"idempotency-key", b"order-7")]}
        for name in ("route", "endpoint", "path_params"):
            copied.pop(name, None)
        client = asgi.Client()
        await app(copied, client.receive, client.send)

    answers = call(app, post("/batch", "one"), post("/batch", "two"), post("/pay", "order-7"))
    assert [answer.status_code for answer in answers] == [200] * 3
    assert runs == ["ran"]


def session():
    yield


async def session_async():
    yield


def nested(inner: Annotated[None, Depends(session)]): ...


@each("dependency", [session, session_async, nested])
def test_a_dependency_that_ends_after_the_answer_is_warned_of(once, dependency):
    router = APIRouter(route_class=idempotent_route(once))
    with pytest.warns(UserWarning, match=r'^/a: .*ends after the answer.*scope="function"') as warned:

        @router.post("/a")
        async def a(it: Annotated[None, Depends(dependency)], again: Annotated[None, Depends(dependency)]): ...

    assert [one.filename for one in warned] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        app = FastAPI()
        app.include_router(router)
        call(app, post("/a", "k"))

        @router.get("/a")
        async def show(it: Annotated[None, Depends(dependency)]): ...


def test_what_no_guard_covers_can_be_found(once):
    async def endpoint(): ...

    child, guarded = APIRouter(), APIRouter(route_class=idempotent_route(once), prefix="/v1")
    child.post("/child/{number}")(endpoint)
    child.get("/child")(endpoint)
    guarded.post("/own")(endpoint)
    guarded.include_router(child, prefix="/in")
    app = FastAPI()
    app.include_router(guarded, prefix="/api")
    app.post("/app")(endpoint)
    app.get("/guards/nothing", dependencies=[Depends(idempotent(once))])(endpoint)
    app.mount("/files", StaticFiles(check_dir=False))
    app.websocket("/talk")(endpoint)
    app.router.routes.append(StarletteRoute("/class", HTTPEndpoint))
    assert unguarded(app, ["PUT"]) == ["PUT /class"]
    app.router.routes.pop()
    assert unguarded(app) == ["POST /api/v1/in/child/{number}", "POST /app"]
    assert "GET /guards/nothing" in unguarded(app, ["GET"])
    app.add_middleware(AsgiIdempotency, once, Rules(Route("/api/v1/in/child/{id}")), name="http")
    assert unguarded(app) == ["POST /app"]
    app.add_middleware(AsgiIdempotency, once=once, rules=Rules(Route("/app", required=False)), name="http")
    assert unguarded(app) == []


def operation(app, path, method="post"):
    return app.openapi()["paths"][path][method]


def header_of(described):
    (parameter,) = [one for one in described.get("parameters", []) if one["in"] == "header"]
    return parameter


def check_documented(described):
    header = header_of(described)
    assert (header["name"], header["required"]) == ("Idempotency-Key", True)
    assert "application/json" in described["responses"]["422"]["content"]  # FastAPI's own is still there


def test_an_endpoint_of_the_route_class_is_documented(once):
    app = FastAPI()
    app.router.route_class = idempotent_route(once)

    @app.post("/v1/orders/{order}/payments", status_code=201, responses={409: {"description": "Paid already"}})
    async def pay(order: str, payment: dict): ...

    @app.get("/v1/orders/{order}")
    async def show(order: str): ...

    described = operation(app, "/v1/orders/{order}/payments")
    check_documented(described)
    assert [one["name"] for one in described["parameters"]] == ["order", "Idempotency-Key"]
    assert described["responses"]["409"]["description"] == "Paid already"


def test_a_header_that_is_documented_already_is_left_as_it_is(once, app):
    own = [{"$ref": "#/components/parameters/Tenant"}, {"name": "idempotency-key", "in": "header", "required": False}]
    app.router.route_class = idempotent_route(once)
    app.post("/a", openapi_extra={"parameters": own})(lambda: None)
    assert operation(app, "/a")["parameters"] == own


def test_a_response_becomes_an_answer():
    assert answer(PlainTextResponse("ä", 418, {"X-A": "1"})) == Answer(
        418, [("x-a", "1"), ("content-length", "2"), ("content-type", "text/plain; charset=utf-8")], "ä".encode()
    )


idempotent_view = guards(of_flask.idempotent)
KEY = {"Idempotency-Key": '"k"'}


@pytest.fixture
def flask_app():
    return Flask(__name__)


@pytest.fixture
def view(flask_app, once):
    """Guard a function and return what posts to it."""

    def guard(function):
        @flask_app.post("/orders/<int:number>")
        @idempotent_view(once)
        def order(number):
            post.runs += 1
            return function(number)

        def post(**how):
            return flask_app.test_client().post("/orders/7", headers=KEY, **how)

        post.runs = 0
        return post

    return guard


def test_a_body_that_was_read_and_kept_before_counts(flask_app, view):
    flask_app.before_request(lambda: request.get_data() and None)
    post = view(lambda number: [request.get_json()])
    assert [post(json=1).json, post(json=1).json, post(json=2).status_code] == [[1], [1], 422]


def test_a_body_read_before_and_not_kept_is_told_before_anything_runs(flask_app, view, once):
    flask_app.before_request(lambda: request.form and None)
    flask_app.testing = True
    post = view(lambda number: "done")
    with pytest.raises(RuntimeError, match="was read before its idempotency key"):
        post(data={"a": "1"}, content_type="multipart/form-data")
    assert (post.runs, statuses(once)) == (0, [])


def test_an_error_that_the_application_handles_is_recorded_as_its_answer(flask_app, view, once):
    @flask_app.errorhandler(LookupError)
    def missing(error):
        return {"missing": str(error)}, 404

    def find(number):
        raise LookupError("order")

    post = view(find)
    assert [(one.status_code, one.json) for one in (post(), post())] == [(404, {"missing": "order"})] * 2
    assert (post.runs, statuses(once)) == (1, [COMPLETED])


def test_the_route_is_told_as_flask_has_it(flask_app, once):
    told = []
    observe = lambda event: told.append((event.kind, event.route)) if isinstance(event, Event) else None
    order = idempotent_view(Once(once.store, name="told", observe=[observe]))(lambda number: "done")
    flask_app.add_url_rule("/orders/<int:number>", "order", order, methods=["POST"])
    for _ in range(2):
        flask_app.test_client().post("/orders/7", headers=KEY)
    assert told == [(kind, "POST /orders/<int:number>") for kind in ("claimed", "completed", "replayed")]


def test_a_streamed_response_is_sent_as_made_and_ends_when_it_is_recorded(flask_app, view, once):
    log = []

    def stream(number):
        def parts():
            for part in ("a", "b"):
                log.append(part)
                assert current().record.status == IN_PROGRESS
                yield part
            log.append(request.path)

        return Response(stream_with_context(parts()), 201)

    post = view(stream)
    first = post(buffered=False)
    parts = first.iter_encoded()
    assert [next(parts), log, statuses(once)] == [b"a", ["a"], [IN_PROGRESS]]
    assert [*parts, log, statuses(once)] == [b"b", ["a", "b", "/orders/7"], [COMPLETED]]
    first.close()
    assert [post().data, post.runs] == [b"ab", 1]
