"""What is wrong is told when a server starts: options that do not fit, and routes that match nothing."""

import asyncio
import os
import re
import subprocess
import sys

import flask
import pytest
from django.test import Client, override_settings
from django.urls import path
from fastapi import APIRouter, FastAPI
from litestar import Litestar
from litestar import post as litestar_post
from litestar.middleware import DefineMiddleware
from litestar.params import FromPath
from quart import Quart
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.routing import Route as StarletteRoute

from onceward import Once
from onceward.http.coverage import Coverage, Known
from onceward.web import AsgiIdempotency, Route, Scope, WsgiIdempotency
from places import SOURCES, WORKERS
from servers.needs import free_port
from web import api_events as api
from web import django_site as site
from web import wsgi
from web.calls import Rules, call, on_api, post
from web.servers import uvicorn

pytestmark = pytest.mark.sampled(app=1)


@pytest.fixture
def once():
    return Once("memory:")


# --- options that do not fit ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("app", ["starlette", "fastapi"])
def test_a_lease_that_is_too_short_fails_when_the_server_starts(app, tmp_path):
    port = str(free_port())
    command = [sys.executable, "-m", "uvicorn", "--port", port, f"web_asgi_wrong:{app}"]
    paths = os.pathsep.join(map(str, (SOURCES, WORKERS)))
    environment = os.environ | {"LEASE": "0.00001", "PYTHONPATH": paths, "LEDGER": f"sqlite:///{tmp_path}/ledger.db"}
    server = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20, check=False)
    assert server.returncode != 0
    assert "lease=1e-05 is too short for sqlite:///" in server.stderr
    assert "Application startup failed" in server.stderr


@pytest.mark.slow
def test_a_lease_that_fits_starts(tmp_path):
    with uvicorn("web_asgi_wrong:starlette", LEASE="30", LEDGER=f"sqlite:///{tmp_path}/ledger.db") as server:
        assert server.post("/")[0] == 400  # its key is missing


def test_a_start_that_fails_raises_the_error_itself(once):
    app = Starlette()
    app.add_middleware(AsgiIdempotency, once=once, rules=Rules())
    with pytest.raises(TypeError, match="name= is missing"):
        start(app)


def test_a_server_without_a_lifespan_is_told_at_the_first_request(once):
    app = Starlette()
    app.add_middleware(AsgiIdempotency, once=once, rules=Rules())
    with pytest.raises(TypeError, match="name= is missing"):
        call(app, post("/"))


def test_asgi_servers_authenticate_nobody(once):
    with pytest.raises(ValueError, match=r"Scope\.HOST: ASGI servers authenticate nobody"):
        AsgiIdempotency(None, once, Rules(scope=Scope.HOST), name="shop")


def test_who_makes_the_middleware_at_once_is_told_at_once(once):
    with pytest.raises(TypeError, match="name= is missing"):
        AsgiIdempotency(None, once, Rules())


# --- routes that match nothing ----------------------------------------------------------------------------------------


def start(app):
    """Run an application's lifespan, as a server does."""

    async def main():
        messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
        sent = []

        async def receive():
            return next(messages)

        async def send(message):
            sent.append(message["type"])

        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
        assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]

    asyncio.run(main())


async def endpoint(request): ...


def by_starlette(once, rules):
    routes = [
        StarletteRoute("/orders/{id:int}", endpoint, methods=["POST"]),
        Mount("/v1", routes=[StarletteRoute("/notes", endpoint, methods=["POST"])]),
    ]
    app = Starlette(routes=routes)
    app.add_middleware(AsgiIdempotency, once=once, rules=rules, name="shop")
    start(app)


def by_fastapi(once, rules):
    app, router = FastAPI(openapi_url=None), APIRouter(prefix="/v1")
    app.post("/orders/{number}")(endpoint)
    router.post("/notes")(endpoint)
    app.include_router(router)
    start(AsgiIdempotency(app, once, rules, name="shop"))


def by_litestar(once, rules):
    @litestar_post("/orders/{number:int}")
    async def order(number: FromPath[int]) -> None: ...

    @litestar_post("/v1/notes")
    async def note() -> None: ...

    app = Litestar(
        [order, note],
        logging_config=None,
        middleware=[DefineMiddleware(AsgiIdempotency, once=once, rules=rules, name="shop")],
    )
    call(app, post("/v1/notes"), post("/v1/notes"))  # it starts without its middleware


def by_quart(once, rules):
    app = Quart(__name__)
    app.asgi_app = AsgiIdempotency(app.asgi_app, once, rules, name="shop")
    app.post("/orders/<int:number>")(endpoint)
    app.post("/v1/notes", endpoint="notes")(endpoint)
    start(app)


def by_flask(once, rules):
    app = flask.Flask(__name__)
    app.wsgi_app = WsgiIdempotency(app.wsgi_app, once, rules, name="shop")
    app.post("/orders/<int:number>")(lambda number: "")
    app.post("/v1/notes", endpoint="notes")(lambda: "")
    for _ in range(2):
        app.test_client().post("/other")


def by_django(once, rules):
    urls = (path("orders/<int:number>", site.dispatch), path("v1/notes", site.dispatch))
    given = {"once": once, "name": "shop", "rules": rules}
    with override_settings(MIDDLEWARE=[site.MIDDLEWARE], ONCEWARD=given, ROOT_URLCONF=urls):
        client = Client()
        for _ in range(2):
            client.post("/other")


FRAMEWORKS = pytest.mark.parametrize(
    "framework", [by_starlette, by_fastapi, by_litestar, by_quart, by_flask, by_django], ids=lambda made: made.__name__
)


def told(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "onceward"]


@FRAMEWORKS
def test_a_route_that_matches_nothing_is_told_of_when_application_starts(once, framework, caplog):
    framework(once, Rules(Route("/orders/{id}"), Route("/order/{id}"), Route("/v2/*"), Route("/v1/notes")))
    assert [re.match(r"Route\('(.*?)'", text)[1] for text in told(caplog)] == ["/order/{id}", "/v2/*"]
    assert all("matches no route of the application, so it guards nothing" in text for text in told(caplog))


@FRAMEWORKS
def test_routes_that_match_are_not_told_of(once, framework, caplog):
    framework(once, Rules(Route("/orders/*"), Route("/v1/notes/"), Route("/{any}/notes"), Route("*")))
    assert told(caplog) == []


@pytest.mark.parametrize(
    ("ours", "theirs", "meet"),
    [
        ("/a", "/a", True),
        ("/a/", "//a", True),
        ("/a", "/a/b", False),
        ("/a/b", "/a", False),
        ("/a/{x}/c", "/a/b/{y}", True),
        ("/a/new", "/a/{id}", True),
        ("/a/*", "/a/b/c/{d}", True),
        ("/a/*", "/b/{c}", False),
        ("/v1*", "/v1beta/a", True),
        ("/a/b/c", "/a/{rest:path}", True),
        ("/a/b/c", "/a/<path:rest>", True),
        ("/b/c", "/a/{rest:path}", False),
        ("/", "/", True),
        ("/a", "/", False),
    ],
)
def test_whether_two_paths_may_be_those_of_one_request(ours, theirs, meet, caplog):
    Coverage(Rules(Route(ours))).compare([Known(theirs, None)])
    assert (told(caplog) == []) is meet


def test_a_route_whose_methods_application_does_not_take_matches_nothing(caplog):
    Coverage(Rules(Route("/a", methods=["PATCH"]))).compare([Known("/a", {"POST"}), Known("/b", None)])
    assert "The application has /b" in caplog.text


def test_routes_that_cannot_be_read_change_nothing(once, caplog):
    class Odd(wsgi.Shop):
        @property
        def url_map(self):
            raise LookupError("its own")

    assert (
        wsgi.ask(WsgiIdempotency(Odd(), once, Rules(Route("/orders")), name="shop"), PATH_INFO="/orders").status == 201
    )
    assert "Requests are guarded all the same" in caplog.text


def by_asgi(once, rules, path):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body"})

    guarded = AsgiIdempotency(app, once, rules, name="shop")
    return lambda: call(guarded, post(path))


def by_wsgi(once, rules, path):
    guarded = WsgiIdempotency(wsgi.Shop(), once, rules, name="shop")
    return lambda: wsgi.ask(guarded, key=None, PATH_INFO=path)


def by_lambda(once, rules, path):
    handler = on_api(once, rules, name="shop")(lambda event, context: None)
    return lambda: handler(api.http(path=path))


@pytest.mark.parametrize("face", [by_asgi, by_wsgi, by_lambda])
def test_elsewhere_the_first_request_that_no_route_covers_is_told_of_once(once, face, caplog):
    rules = Rules(Route("/orders"), exempt=["/health"])
    face(once, rules, "/orders")()
    face(once, rules, "/health")()
    assert told(caplog) == []
    ask = face(once, rules, "/order")
    ask()
    ask()
    (text,) = told(caplog)
    assert text.startswith("POST '/order' is not guarded, because no route of the rules covers it: Route('/orders'")
