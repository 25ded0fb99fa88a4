"""FastAPI: guards of single endpoints, the middleware around them, and what would be unguarded without a word."""

import warnings
from typing import Annotated

import pytest
from fastapi import APIRouter, Depends, FastAPI

from onceward import Claim, current
from onceward.core.record import COMPLETED
from onceward.web import AsgiIdempotency, Route
from onceward.web import fastapi as of_fastapi
from onceward.web.fastapi import IdempotentRoute, unguarded
from tables import each
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


def test_a_request_that_the_middleware_guards_is_not_guarded_again(once, runs):
    rules = Rules(Route(key="body.id"))
    app = FastAPI()
    app.router.route_class = idempotent_route(once, rules)

    @app.post("/a")
    async def a(what: dict, claim: Annotated[Claim, Depends(current)]):
        runs.append(claim.record.key)
        return {"what": what, "run": len(runs)}

    app.add_middleware(AsgiIdempotency, once=once, rules=rules, name="http")
    first, second = call(app, *[post("/a", "k", json={"id": "7", "text": "x" * 100_000})] * 2)
    assert (first.status_code, first.json()) == (second.status_code, second.json())
    assert (first.status_code, len(runs), statuses(once)) == (200, 1, [COMPLETED])


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
    sub = FastAPI()
    sub.patch("/inner")(endpoint)
    app = FastAPI()
    app.include_router(guarded, prefix="/api")
    app.post("/app")(endpoint)
    app.get("/guards/nothing", dependencies=[Depends(idempotent(once))])(endpoint)
    app.mount("/sub", sub)
    assert unguarded(app) == ["PATCH /sub/inner", "POST /api/v1/in/child/{number}", "POST /app"]
    assert "GET /guards/nothing" in unguarded(app, ["GET"])

    sub.add_middleware(AsgiIdempotency, once=once, rules=Rules(Route("/inner")), name="http")
    assert unguarded(app) == ["POST /api/v1/in/child/{number}", "POST /app"]
    app.add_middleware(AsgiIdempotency, once, Rules(Route("/api/v1/in/child/{id}")), name="http")
    assert unguarded(app) == ["POST /app"]
    app.add_middleware(AsgiIdempotency, once=once, rules=Rules(exempt=["/app"]), name="http")
    assert unguarded(app) == []
