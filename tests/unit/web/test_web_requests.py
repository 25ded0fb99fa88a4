"""In every face: which requests are guarded, however they are written; and no effect is repeated when ``record=`` raises."""

import asyncio

import flask
import litestar
import pytest
import quart
from fastapi import APIRouter, FastAPI
from httpx import ASGITransport, AsyncClient
from werkzeug.test import EnvironBuilder

from onceward import Once
from onceward.core.record import COMPLETED
from onceward.stores.memory import MemoryStore
from onceward.web import Route
from onceward.web import fastapi as of_fastapi
from tables import each
from web import asgi, django_site, wsgi
from web.calls import AsgiIdempotency, Rules, WsgiIdempotency, guards, on_api

pytestmark = pytest.mark.sampled(target=2)

idempotent_route = guards(of_fastapi.idempotent_route)


@pytest.fixture
def once():
    made = Once(MemoryStore())
    yield made
    made.close()


@each("guarded_by", ["middleware", "route"])
def test_client_may_follow_redirect_that_asks_for_same_request_elsewhere(once, guarded_by):
    app, runs = FastAPI(), []
    router = APIRouter(route_class=idempotent_route(once)) if guarded_by == "route" else APIRouter()

    @router.post("/orders", status_code=201)
    async def order() -> int:
        runs.append(1)
        return len(runs)

    app.include_router(router)
    if guarded_by == "middleware":
        app.add_middleware(AsgiIdempotency, once=once, rules=Rules(Route("/orders")))

    async def main():
        async with AsyncClient(
            transport=ASGITransport(app),
            base_url="http://shop",
            follow_redirects=True,
            headers={"Idempotency-Key": "k"},
        ) as client:
            return [await client.post("/orders/"), await client.post("/orders/"), await client.post("/orders")]

    assert [(answer.status_code, answer.text) for answer in asgi.run(main())] == [(201, "1")] * 3


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


def test_under_django_too_a_method_in_small_letters_is_not_let_through(site):
    view = django_site.Order()
    site(view)
    for _ in range(2):
        django_site.post(REQUEST_METHOD="post")
    assert view.runs == 1


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


def broken(status):
    raise ZeroDivisionError(status)


@pytest.mark.parametrize("shell", ["asgi", "lambda"])
def test_an_effect_is_not_repeated_because_record_raises(once, caplog, shell):
    rules = Rules(record=broken)
    if shell == "asgi":
        app = asgi.Counter()
        guarded = AsgiIdempotency(app, once, rules)
        answers = [asgi.run(asgi.ask(guarded)) for _ in range(2)]
        assert [(answer.status, answer.body) for answer in answers] == [(201, b'{"run":1}')] * 2
    else:
        runs = []

        @on_api(once, rules)
        def handler(event, context):
            runs.append(1)
            return {"statusCode": 201, "body": str(len(runs))}

        event = {"httpMethod": "POST", "path": "/", "headers": {"idempotency-key": "k"}, "body": None}
        assert [handler(event)["body"] for _ in range(2)] == ["1", "1"]
    assert asgi.statuses(once) == [COMPLETED]
    assert "ZeroDivisionError" in caplog.text
