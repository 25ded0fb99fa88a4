"""What a review of the HTTP middleware found: each test failed before its fix."""

import asyncio
import json
import tracemalloc
from http import HTTPStatus

import anyio
import flask
import litestar
import pytest
import quart
import test_web_asgi as asgi
import test_web_django as django
import test_web_rules as rules_of
import test_web_wsgi as wsgi
from fastapi import APIRouter, FastAPI
from httpx import ASGITransport, AsyncClient
from werkzeug.test import EnvironBuilder

from onceward import Once
from onceward.core.record import COMPLETED, RELEASED
from onceward.http.body import fingerprint
from onceward.stores.memory import MemoryStore
from onceward.web import Route, Scope
from onceward.web import django as of_django
from onceward.web import fastapi as of_fastapi
from onceward.web.sending_async import to_its_end
from web_calls import AsgiIdempotency, Rules, WsgiIdempotency, guards, on_api

idempotent, idempotent_route = guards(of_django.idempotent), guards(of_fastapi.idempotent_route)

urlpatterns = django.urlpatterns
_urls, site = django._urls, django.site


@pytest.fixture(autouse=True)
def _urls():
    with django.override_settings(ROOT_URLCONF=django.__name__):  # whoever has configured Django first
        yield


@pytest.fixture
def once():
    made = Once(MemoryStore())
    yield made
    made.close()


def statuses(once):
    return [record.status for record, _ in once.ledger.records()]


class SlowStore(MemoryStore):
    """A store that is asked over a network: the one who awaits it can be cancelled meanwhile."""

    async def exchange_async(self, request):
        await asyncio.sleep(0.02)
        return self.exchange(request)


# --- whose key it is ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty", ["authorization", "x-api-key"])
def test_an_empty_credential_says_nothing_of_the_caller(empty):
    asked = Rules(scope=Scope.CREDENTIAL).begin(rules_of.keyed("k", (empty, " ")))
    assert rules_of.kind_of(asked) == "unscoped"


def test_an_api_key_besides_cookies_may_be_that_of_all_users_of_a_page():
    request = rules_of.keyed("k", ("x-api-key", "of the page"), ("cookie", "session=alice"))
    assert rules_of.kind_of(Rules(scope=Scope.CREDENTIAL).begin(request)) == "unscoped"


def test_a_scopes_header_that_was_sent_empty_twice_is_missing():
    asked = Rules(scope="header:X-Tenant").begin(rules_of.keyed("k", ("x-tenant", ""), ("x-tenant", "")))
    assert rules_of.kind_of(asked) == "unscoped"


@pytest.mark.parametrize("line", ["AWS AKID:c2ln", "SharedKey me:c2ln", "Digest\tusername=x", "HMAC-SHA256 c2ln"])
def test_more_credentials_that_are_new_each_time_are_refused(line):
    asked = Rules(scope=Scope.CREDENTIAL).begin(rules_of.keyed("k", ("authorization", line)))
    assert rules_of.kind_of(asked) == "unscoped"


# --- which requests -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["//orders", "/orders//", "/orders\n"])
def test_paths_that_frameworks_route_alike_are_covered_alike(path):
    assert Route("/orders").covers("POST", path)
    assert Route("/v1/orders/{id}").covers("POST", "//v1//orders/7")


def test_a_slash_at_the_end_makes_another_request_or_key_as_little_as_another_route():
    one, other = rules_of.post("/orders"), rules_of.post("//orders/")
    assert fingerprint(one, b"a") == fingerprint(other, b"a")
    rules = Rules(Route("/orders", key="body.id"))
    assert rules_of.asked(rules, one, b'{"id":1}') == rules_of.asked(rules, other, b'{"id":1}')


@pytest.mark.parametrize("guarded_by", ["middleware", "route"])
def test_a_client_may_follow_a_redirect_that_asks_for_the_same_request_elsewhere(once, guarded_by):
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


def test_a_method_in_small_letters_is_not_let_through_for_frameworks_make_it_capital(once, site):
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
    view = django.Order()
    site(view)
    for _ in range(2):
        django.post(REQUEST_METHOD="post")
    assert view.runs == 1


def test_a_key_in_a_body_has_the_length_that_the_rules_say():
    rules = Rules(Route(key="body.id"), length=(2, 8))
    for key in ("x" * 9, "x", ["x" * 8, "y"], 10**9):
        answer = rules_of.asked(rules, rules_of.post(), json.dumps({"id": key}).encode())
        assert rules_of.kind_of(answer) == "malformed"
    assert rules_of.asked(rules, rules_of.post(), b'{"id":"12345678"}').key


# --- answers ------------------------------------------------------------------------------------------------------


def broken(status):
    raise ZeroDivisionError(status)


@pytest.mark.parametrize("shell", ["asgi", "wsgi", "lambda"])
def test_an_effect_is_not_repeated_because_the_callable_that_says_what_is_recorded_raises(once, caplog, shell):
    rules = Rules(record=broken)
    if shell == "asgi":
        app = asgi.Counter()
        guarded = AsgiIdempotency(app, once, rules)
        answers = [asgi.run(asgi.ask(guarded)) for _ in range(2)]
        assert [(answer.status, answer.body) for answer in answers] == [(201, b'{"run":1}')] * 2
    elif shell == "wsgi":
        guarded = WsgiIdempotency(wsgi.Shop(), once, rules)
        answers = [wsgi.ask(guarded) for _ in range(2)]
        assert [(answer.status, answer.sent) for answer in answers] == [(201, b'{"run":1}')] * 2
    else:
        runs = []

        @on_api(once, rules)
        def handler(event, context):
            runs.append(1)
            return {"statusCode": 201, "body": str(len(runs))}

        event = {"httpMethod": "POST", "path": "/", "headers": {"idempotency-key": "k"}, "body": None}
        assert [handler(event)["body"] for _ in range(2)] == ["1", "1"]
    assert statuses(once) == [COMPLETED]
    assert "ZeroDivisionError" in caplog.text


def test_an_answer_is_recorded_although_its_framework_cancels_it_when_the_client_leaves_at_the_end():
    once = Once(SlowStore())
    runs = []

    async def app(scope, receive, send):  # as Starlette sends a stream
        runs.append(1)
        await asgi.read(receive)
        loop = asyncio.get_running_loop()
        async with anyio.create_task_group() as group:

            async def watch():
                while (await receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            group.start_soon(watch)
            await send({"type": "http.response.start", "status": 201, "headers": []})
            await send({"type": "http.response.body", "body": b"x" * 11, "more_body": True})
            loop.call_later(0.01, client.gone.set)
            await send({"type": "http.response.body", "body": b""})
            group.cancel_scope.cancel()

    guarded = AsgiIdempotency(app, once, Rules(max_response=10))
    client = asgi.Client()

    async def main():
        await guarded(asgi.scope(), client.receive, client.send)
        assert (await asgi.ask(guarded)).problem == "unavailable"

    asgi.run(main())
    assert statuses(once) == [COMPLETED]
    assert runs == [1]
    once.close()


def test_an_answer_is_recorded_although_the_time_that_its_framework_gives_it_is_over():
    once = Once(SlowStore())
    counter = asgi.Counter()

    async def app(scope, receive, send):
        with anyio.move_on_after(0.01):
            await counter(scope, receive, send)

    async def main():
        guarded = AsgiIdempotency(app, once)
        return [await asgi.ask(guarded) for _ in range(2)]

    answers = asgi.run(main())
    assert [(answer.status, answer.body) for answer in answers] == [(201, b'{"run":1}')] * 2
    assert statuses(once) == [COMPLETED]
    once.close()


def test_a_part_of_a_body_that_is_no_bytes_is_a_mistake_and_no_outcome(once):
    def app(environ, start_response):
        start_response("200 OK", [])
        return ["text"]

    with pytest.raises(TypeError):
        wsgi.ask(WsgiIdempotency(app, once))
    assert statuses(once) == [RELEASED]


# --- bodies -------------------------------------------------------------------------------------------------------


def test_a_body_in_small_chunks_takes_no_more_memory_than_in_large_ones(once):
    async def app(scope, receive, send):
        await asgi.answer(send, body=str(tracemalloc.get_traced_memory()[1]).encode())

    left = 200_000

    async def receive():
        nonlocal left
        left -= 1
        return {"type": "http.request", "body": b"%02d" % (left % 100), "more_body": left > 0}

    client = asgi.Client()
    tracemalloc.start()
    try:
        asgi.run(AsgiIdempotency(app, once)(asgi.scope(), receive, client.send))
    finally:
        tracemalloc.stop()
    assert int(client.body) < 4_000_000  # of 400,000 bytes


# --- Django -------------------------------------------------------------------------------------------------------


def test_a_content_length_that_is_no_number_is_refused_by_django_too(site, once):
    view = django.Order()
    site(view)
    assert django.problem(django.post(CONTENT_LENGTH="many")) == "unreadable"
    assert view.runs == 0


def test_a_view_that_returns_no_response_gives_the_key_back(once):
    def view(request, number):
        return None

    with django.override_settings(MIDDLEWARE=[]):
        django.VIEWS["now"] = idempotent(once)(view)
        assert django.post().status_code == 500
    assert statuses(once) == [RELEASED]


def test_a_decorated_class_based_view_may_be_of_coroutines(once):
    runs = []

    @django.method_decorator(idempotent(once), name="dispatch")
    class Orders(django.View):
        async def post(self, request, number):
            runs.append(1)
            await asyncio.sleep(0)
            return django.JsonResponse({"run": len(runs)}, status=201)

    with django.override_settings(MIDDLEWARE=[]):
        django.VIEWS["now"] = Orders.as_view()
        answers = [django.run(django.post_async()) for _ in range(2)]
    assert [(answer.status_code, answer.content) for answer in answers] == [(201, b'{"run": 1}')] * 2
    assert statuses(once) == [COMPLETED]


def test_a_response_that_nobody_takes_is_made_also_when_its_request_is_cancelled_twice():
    made = []

    async def work():
        await asyncio.sleep(0.05)
        return "response"

    async def abandoned(response):
        await asyncio.sleep(0)
        made.append(response)

    async def main():
        task = asyncio.ensure_future(to_its_end(work(), abandoned))
        for _ in range(2):
            await asyncio.sleep(0.01)
            task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        for _ in range(100):
            await asyncio.sleep(0.01)
            if made:
                return

    asgi.run(main())
    assert made == ["response"]


# --- options that would protect nothing ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/orders/<int:id>", "/f/{rest:path}", "/caf%C3%A9", "/orders?all=1", "/orders#top"])
def test_a_path_that_no_request_can_have_is_refused(path):
    with pytest.raises(ValueError, match="is not what a request's path is compared with"):
        Route(path)
    assert Route("/orders/{id:int}").covers("POST", "/orders/7")


@pytest.mark.parametrize("record", ["2xx", ["200"], []])
def test_statuses_that_no_answer_can_have_are_refused(record):
    with pytest.raises(TypeError, match="give statuses"):
        Rules(record=record)
    assert Rules(record=range(200, 300)).records(201)


# --- Lambda -------------------------------------------------------------------------------------------------------


def test_a_response_with_an_http_status_is_replayed(once):
    @on_api(once)
    def handler(event, context):
        return {"statusCode": HTTPStatus.CREATED, "body": "made"}

    event = {"httpMethod": "POST", "path": "/", "headers": {"idempotency-key": "k"}, "body": None}
    assert [(answer["statusCode"], answer["body"]) for answer in (handler(event), handler(event))] == [
        (201, "made")
    ] * 2


# --- a server that takes nothing any more -------------------------------------------------------------------------


@pytest.mark.parametrize("in_a_task_of_its_own", [False, True])
def test_a_request_that_is_cancelled_while_a_part_of_its_answer_waits_to_be_taken_goes_on(once, in_a_task_of_its_own):
    runs, waiting = [], asyncio.Event()

    async def stream(send):
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await send({"type": "http.response.body", "body": b"b"})

    async def app(scope, receive, send):
        runs.append(1)
        if in_a_task_of_its_own:
            async with anyio.create_task_group() as group:
                group.start_soon(stream, send)
        else:
            await stream(send)

    async def stuck(message):  # as the stream of a middleware whose other end is gone
        waiting.set()
        await asyncio.Event().wait()

    async def main():
        guarded = AsgiIdempotency(app, once)
        task = asyncio.ensure_future(guarded(asgi.scope(), asgi.Client().receive, stuck))
        await waiting.wait()
        task.cancel()
        await asyncio.wait((task,))
        for _ in range(200):
            if statuses(once) == [COMPLETED]:
                break
            await asyncio.sleep(0.01)
        again = await asgi.ask(guarded)
        return again.status, again.body

    assert asgi.run(main()) == (201, b"ab")
    assert runs == [1]


def test_events_that_begin_after_their_request_was_cancelled_come_to_an_end(once):
    begun = asyncio.Event()

    async def app(scope, receive, send):
        begun.set()
        await asyncio.sleep(0.05)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        while True:
            await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
            await asyncio.sleep(0.001)

    async def main():
        client = asgi.Client()
        task = asyncio.ensure_future(AsgiIdempotency(app, once)(asgi.scope(), client.receive, client.send))
        await begun.wait()
        task.cancel()
        for _ in range(100):
            await asyncio.sleep(0.01)
            if statuses(once) == [COMPLETED]:
                break
        return statuses(once)  # before the loop is closed, which ends everything

    assert asgi.run(main()) == [COMPLETED]


@pytest.mark.parametrize("target", ["http://test/orders", "http://test//orders", "orders", "/orders"])
@pytest.mark.parametrize("framework", ["quart", "litestar", "flask"])
def test_a_whole_url_or_a_path_without_its_slash_does_not_go_round_the_guard(once, framework, target):
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
