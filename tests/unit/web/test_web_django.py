"""Django's middleware and the decorator for its views, under both of its handlers."""

import asyncio
import io
import time
from contextvars import copy_context

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.core.handlers.asgi import ASGIHandler
from django.core.signals import got_request_exception
from django.db import connection, transaction
from django.http import Http404, HttpResponse, JsonResponse, StreamingHttpResponse
from django.test import RequestFactory, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from fixtures import closing_fixture
from onceward import Once, current
from onceward.core.record import COMPLETED, IN_PROGRESS, RELEASED
from onceward.web import Route
from onceward.web import django as of_django
from onceward.web.django import IdempotencyMiddleware
from tables import each
from web.calls import Rules, guards
from web.django_site import MIDDLEWARE, PATIENCE, VIEWS, Order, post, post_async, problem, run, statuses

idempotent = guards(of_django.idempotent)
once = closing_fixture(lambda tmp_path: Once(f"sqlite:///{tmp_path}/ledger.db"))


@pytest.mark.parametrize("how", [{"CONTENT_LENGTH": "6"}, {"CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked"}])
def test_a_request_whose_body_has_no_known_end_is_not_carried_out(site, once, how):
    order = Order()
    site(order)
    assert problem(post(**how, **{"wsgi.input": io.BytesIO(b"12345")})) == "unreadable"
    assert (order.runs, statuses(once)) == (0, [])


@each(
    ("given", "told"),
    [
        (None, r"settings\.ONCEWARD is missing"),
        ({"once": "sqlite://"}, r"settings\.ONCEWARD"),
        ({"once": Once("memory:"), "name": "http", "rules": Rules(), "nonsense": 1}, "nonsense"),
    ],
)
def test_settings_that_do_not_fit_are_told(given, told):
    with override_settings(ONCEWARD=given), pytest.raises(ImproperlyConfigured, match=told):
        IdempotencyMiddleware(lambda request: None)


def test_a_streamed_response_ends_when_it_is_recorded(site, once):
    def stream(request, number):
        def parts():
            yield current().record.status
            yield "b"

        return StreamingHttpResponse(parts(), status=201)

    site(stream)
    first = post()
    parts = iter(first)
    assert [next(parts), next(parts), statuses(once)] == [b"IN_PROGRESS", b"b", [IN_PROGRESS]]
    assert [list(parts), statuses(once)] == [[], [COMPLETED]]
    first.close()
    assert (post().content, post()["Idempotent-Replayed"]) == (b"IN_PROGRESSb", "true")


def failing(get_response):
    return lambda request: get_response(request) and {}["a middleware that raises"]


@pytest.mark.parametrize("recorded", [COMPLETED, RELEASED])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_streamed_response_is_recorded_though_a_middleware_around_raises(site, once, is_async, recorded):
    async def parts():
        yield bytes([1 // (recorded == COMPLETED)])

    several = (bytes([1 // (recorded == COMPLETED)]) for _ in "a")
    site(lambda request, number: StreamingHttpResponse(parts() if is_async else several))
    with override_settings(MIDDLEWARE=[f"{__name__}.failing", MIDDLEWARE]):
        assert (post().status_code, statuses(once)) == (500, [recorded])
    got_request_exception.send(None)  # by a program, outside of requests


def streams(site, parts, **options):
    """Have the site answer with a stream of these parts."""

    async def view(request, number):
        return StreamingHttpResponse(parts(), **options)

    site(view)


async def leave_when(told, sent=None, url="/later/7"):
    """Send a request to Django's handler, and leave when ``told`` is set."""
    headers = [(b"idempotency-key", b'"k"'), (b"host", b"x"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": url, "query_string": b"", "headers": headers}
    pending = [b"{}"]

    async def receive():
        if pending:
            return {"type": "http.request", "body": pending.pop()}
        await told.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        if sent is not None:
            sent.append(message)
            if message.get("body"):
                told.set()
                await asyncio.sleep(3600)

    await asyncio.wait_for(ASGIHandler()(scope, receive, send), PATIENCE)


@pytest.mark.parametrize("url", ["/later/7", "/orders/7"])
async def test_under_asgi_a_client_that_leaves_does_not_stop_the_view(site, once, url):
    log = []

    async def slow(request, number):
        started.set()
        await asyncio.sleep(0.2)
        log.append("effect")
        return HttpResponse("done")

    def slow_sync(request, number):
        loop.call_soon_threadsafe(started.set)
        time.sleep(0.2)
        log.append("effect")
        return HttpResponse("done")

    site(slow if url == "/later/7" else slow_sync)

    started, loop = asyncio.Event(), asyncio.get_running_loop()
    await leave_when(started, url=url)
    assert log == ["effect"]
    assert ((await post_async(url)).content, log, statuses(once)) == (b"done", ["effect"], [COMPLETED])


async def test_under_asgi_a_client_that_leaves_amid_a_stream_does_not_stop_it(site, once):
    log = []

    async def parts():
        for part in ("a", "b", "c"):
            yield part
            await asyncio.sleep(0.05)
        log.append("effect")

    streams(site, parts)
    sent = []
    await leave_when(asyncio.Event(), sent)
    assert [message["body"] for message in sent[1:]] == [b"a"]
    assert ((await post_async()).content, log, statuses(once)) == (b"abc", ["effect"], [COMPLETED])


async def test_under_asgi_events_without_end_are_ended_when_their_client_leaves(site, once):
    log = []

    async def parts():
        log.append("effect")
        yield "data: 1\n\n"
        try:
            await asyncio.sleep(3600)
        finally:
            log.append("ended")

    streams(site, parts, content_type="text/event-stream")
    await leave_when(asyncio.Event(), [])
    assert (problem(await post_async()), log) == ("unavailable", ["effect", "ended"])


def called(guarded, data=b"{}", **headers):
    request = RequestFactory().post("/orders", data, "application/json", headers={"Idempotency-Key": '"k"', **headers})
    return guarded(request, number=7)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_decorated_class_based_view_runs_once(once, is_async):
    runs = []

    class Orders(View):
        def post(self, request, number):
            runs.append(number)
            return JsonResponse({"run": len(runs)}, status=201)

    class OrdersLater(View):
        async def post(self, request, number):
            return Orders.post(self, request, number)

    guarded = method_decorator(idempotent(once), name="dispatch")(OrdersLater if is_async else Orders)
    with override_settings(MIDDLEWARE=[]):
        VIEWS["now"] = guarded.as_view()
        answers = [run(post_async()) if is_async else post() for _ in range(2)]
    assert [(answer.status_code, answer.content) for answer in answers] == [(201, b'{"run": 1}')] * 2
    assert statuses(once) == [COMPLETED]


@pytest.mark.parametrize(("error", "status", "is_async"), [(Http404, 404, True), (PermissionDenied, 403, False)])
def test_what_django_answers_for_a_decorated_views_exception_is_recorded(once, error, status, is_async):
    runs = []

    def refused(request, number):
        runs.append(1)
        raise error("no")

    async def refused_later(request, number):
        refused(request, number)

    VIEWS["now"] = idempotent(once)(refused_later if is_async else refused)
    sent = [run(post_async()), run(post_async())] if is_async else [post(), post()]
    assert [response.status_code for response in sent] == [status, status]
    assert [response.get("Idempotent-Replayed") for response in sent] == [None, "true"]
    assert sent[0].content == sent[1].content
    assert (runs, statuses(once)) == ([1], [COMPLETED])


@pytest.fixture
def atomic(monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    yield
    connection.close()


def test_with_atomic_requests_the_effect_commits_before_its_record_or_is_undone(once, atomic):
    seen = []

    def missing(request, number):
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE left_behind (id INTEGER)")
        raise Http404

    def order(request, number):
        seen.append(connection.in_atomic_block)
        transaction.on_commit(lambda: seen.append(statuses(once)))
        return HttpResponse("done")

    for middleware, target in (([], idempotent(once)(order)), ([MIDDLEWARE], order)):
        urls = (path("orders/<int:number>", target),)
        with override_settings(
            MIDDLEWARE=middleware, ONCEWARD={"once": once, "name": "http", "rules": Rules()}, ROOT_URLCONF=urls
        ):
            assert post().content == b"done"
        assert (seen, statuses(once)) == ([True, [IN_PROGRESS]], [COMPLETED])
        seen.clear()
        once.ledger.clear("http:k:*")
    assert called(idempotent(once)(missing)).status_code == 404
    assert "left_behind" not in connection.introspection.table_names()
    assert statuses(once) == [COMPLETED]


@pytest.mark.parametrize(("status", "left"), [(200, [COMPLETED]), (503, [RELEASED])])
def test_a_hook_that_fails_after_the_commit_does_not_change_what_the_answer_means(once, atomic, status, left):
    def hooked(request, number):
        transaction.on_commit(lambda: 1 / 0)
        return HttpResponse(status=status)

    def order(request, number):
        once.claim("inner", name="z").__enter__()  # it stays open
        return hooked(request, number)

    with pytest.raises(ZeroDivisionError):  # without a key, there is no claim
        idempotent(once, Rules(Route(required=False)))(hooked)(RequestFactory().post("/orders"), number=7)
    with pytest.raises(ZeroDivisionError):
        copy_context().run(called, idempotent(once)(order))
    assert statuses(once) == [*left, IN_PROGRESS]


def atomic_around(get_response):
    """A middleware of the site, with a transaction around the rest."""
    return transaction.atomic(get_response)


def test_a_transaction_around_a_guarded_view_is_refused_beforehand(once):
    order = Order()
    with pytest.raises(ImproperlyConfigured, match="a transaction on the database 'default' is open"):
        called(transaction.atomic(idempotent(once)(order)))
    urls = (path("later/<int:number>", idempotent(once)(order.later)),)
    with override_settings(MIDDLEWARE=[f"{__name__}.atomic_around"], ROOT_URLCONF=urls):
        assert run(post_async("/later/7")).status_code == 500
    assert (order.runs, statuses(once)) == (0, [])


def test_a_body_read_before_and_not_kept_is_told_before_anything_runs(once):
    order = Order()
    request = RequestFactory().post("/orders/7", {"a": "1"}, headers={"Idempotency-Key": '"k"'})
    assert request.POST["a"] == "1"
    with pytest.raises(ImproperlyConfigured, match="was read before its idempotency key"):
        idempotent(once)(order)(request, number=7)
    assert (order.runs, statuses(once)) == (0, [])


def test_a_guard_inside_a_view_of_the_rest_framework_is_refused_beforehand(once):
    from rest_framework.decorators import api_view

    order = Order()
    with pytest.raises(ImproperlyConfigured, match="put it above @api_view"):
        called(api_view(["POST"])(idempotent(once)(order)))
    assert (order.runs, statuses(once)) == (0, [])


async def test_a_scope_may_ask_the_database_under_asgi_too(site):
    def user(request):
        with connection.cursor() as cursor:
            return cursor.execute("SELECT 'ann'").fetchone()[0]

    order = Order()
    site(order.later, rules=Rules(scope=user))

    assert [(await post_async()).json()["run"] for _ in range(2)] == [1, 1]


def test_what_django_takes_no_more_of_is_too_large(site):
    site(Order())
    with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=5):
        assert problem(post(data=b"123456")) == "too-large"


async def test_under_asgi_a_stream_that_nobody_begins_to_take_is_made_anyway(site, once):
    log = []

    async def parts():
        yield "a"
        log.append("effect")

    streams(site, parts)
    response = await post_async()
    await sync_to_async(response.close)()
    assert (log, statuses(once)) == (["effect"], [COMPLETED])
