"""Receivers of webhooks: each event is handled once, and what is answered meanwhile."""

import asyncio
import json
import threading
from concurrent.futures import CancelledError
from functools import partial

import flask
import httpx
import pytest
from django.test import Client, override_settings
from django.urls import path
from fastapi import Depends, FastAPI, Request

from fixtures import closing_fixture
from onceward import Busy, Claim, Once, ResultUnavailable
from onceward.claim.completer import decorated
from onceward.web import Answer
from onceward.web.webhooks import Slack, Stripe, WebhookEvent, WebhookReceiver, graph_handshake, meta_handshake
from onceward.web.webhooks.django import view as django_view
from onceward.web.webhooks.flask import view as flask_view
from onceward.web.webhooks.starlette import endpoint
from tables import each
from waiting import until
from web import django_site  # noqa: F401 - configures Django
from web.signed import BODY, SECRET, by_slack, by_stripe

once = closing_fixture(lambda tmp_path: Once(f"sqlite:///{tmp_path}/ledger.db"))


def _keys(once):
    return [record.key for record, _ in once.ledger.records()]


@pytest.fixture
def handled():
    return []


def receiver(once, handler, **options):
    return WebhookReceiver(once, Stripe(SECRET), handler, name="hooks", **options)


class WithoutId:
    def verify(self, headers, body):
        return WebhookEvent("", "paid", {"challenge": "x"})


def test_an_event_is_handled_once_and_one_that_is_forged_or_cannot_be_kept_leaves_nothing(
    once, handled, tmp_path, caplog
):
    hook = receiver(once, lambda event: handled.append(event.id))
    assert hook.answer({}, BODY).status == 401
    assert hook.answer(by_stripe(b"[]"), b"[]").status == 400
    not_quite_json = b'{"type": "paid", "id": "evt_1", "n": NaN}'
    assert hook.answer(by_stripe(not_quite_json), not_quite_json).status == 400
    assert "(byte 37)" in caplog.text
    assert WebhookReceiver(once, WithoutId(), handled.append, name="own").answer({}, b"").status == 400
    for accept in (False, True):
        away = receiver(Once(f"sqlite:///{tmp_path}/no/such/folder/ledger.db"), handled.append, accept=accept)
        assert away.answer(by_stripe(), BODY).status == 503
    large = json.dumps({"id": "evt_1", "type": "x", "data": "x" * 70_000}).encode()
    with pytest.raises(Exception, match="keeps at most 65536 bytes"):
        receiver(once, _note, accept=True).answer(by_stripe(large), large)
    assert (_keys(once), handled) == ([], [])
    headers = {name.title(): value for name, value in by_stripe().items()}
    assert [hook.answer(headers, BODY).status for _ in range(2)] == [200, 200]
    assert handled == ["evt_1"]
    assert _keys(once) == ["hooks:evt_1"]


def test_a_failure_is_the_frameworks_and_a_busy_key_comes_again(once, handled):
    def handle(event: WebhookEvent, claim: Claim) -> None:
        handled.append(claim.attempt)
        raise LookupError("no such order")

    hook = receiver(once, handle)
    for _ in range(2):
        with pytest.raises(LookupError):
            hook.answer(by_stripe(), BODY)
    assert handled == [1, 2]
    once.acquire("evt_1", name="hooks", lease=60)
    answer = hook.answer(by_stripe(), BODY)
    assert (answer.status, int(dict(answer.headers)["Retry-After"]) > 0) == (503, True)


@each("is_async", [False, True])
@each("error", [ResultUnavailable("other", "too large"), Busy("other", 5.0), StopIteration(), CancelledError()])
def test_an_error_of_a_function_that_the_handler_calls_is_a_failure(error, is_async):
    def handle(event):
        raise error

    async def handle_async(event):
        raise error

    hook = WebhookReceiver(Once("memory:"), Stripe(SECRET), handle_async if is_async else handle, name="hooks")
    with pytest.raises((type(error), RuntimeError)):  # an answer of 200 would lose the event
        asyncio.run(asyncio.wait_for(hook.answer_async(by_stripe(), BODY), 10))


XML = Answer(200, [("Content-Type", "text/xml")], b"<Response/>")


@each("given", [XML, Answer(202, [("X-Odd", "\u00e9")], b"\xff\x00"), Answer(422, (), b"no")])
def test_a_handler_gives_the_answer_and_duplicates_get_the_same(given):
    calls = []

    def handle(event):
        calls.append(event)
        return given

    hook = receiver(Once("memory:"), handle)
    first, again = (hook.answer(by_stripe(), BODY) for _ in range(2))
    assert (first.status, first.body, list(first.headers)) == (given.status, given.body, list(given.headers))
    assert again == first
    assert len(calls) == 1


class AwaitedObject:
    async def __call__(self, event: WebhookEvent) -> Answer:
        return XML


async def _answered(answer, event):
    return answer


@each("handler", [AwaitedObject(), partial(_answered, XML), partial(lambda answer, event: answer, XML)])
def test_a_handler_can_be_a_partial_or_an_object(handler):
    hook = receiver(Once("memory:"), handler)
    for _ in range(2):
        assert asyncio.run(hook.answer_async(by_stripe(), BODY)).body == XML.body


def test_an_answer_that_says_that_it_failed_is_no_outcome(once):
    hook = receiver(once, lambda event: Answer(503))
    for _ in range(2):  # the key was given back
        with pytest.raises(ValueError, match="raise an exception"):
            hook.answer(by_stripe(), BODY)


def _not_awaited(event):
    return _awaited(event)


async def _awaited_once(event):
    return _awaited(event)


@each("handler", [_not_awaited, _awaited_once, lambda event: (event for _ in "a")])
def test_an_event_whose_handler_has_not_begun_comes_again(handler):
    once = Once("memory:")
    hook = receiver(once, handler)
    for _ in range(2):
        with pytest.raises(TypeError, match="so the key is given back"):
            asyncio.run(hook.answer_async(by_stripe(), BODY))
    assert once.ledger.show("hooks:evt_1")[0].status == "RELEASED"


def test_handshakes_and_slacks_question_are_answered_and_not_recorded(once):
    meta = receiver(once, _note, handshake=meta_handshake("my token"))
    asked = {"hub.mode": "subscribe", "hub.verify_token": "my token", "hub.challenge": "115"}
    assert meta.answer({}, b"", method="GET", query=asked).body == b"115"
    assert meta.answer({}, b"", method="GET", query={**asked, "hub.verify_token": "another"}).status == 403
    assert meta.answer({}, b"", method="GET").status == 405
    graph = WebhookReceiver(once, Stripe(SECRET), _note, name="graph", handshake=graph_handshake)
    answer = graph.answer({}, b"", query={"validationToken": "a <b>"})
    assert (answer.body, dict(answer.headers)) == (b"a <b>", {"Content-Type": "text/plain; charset=utf-8"})
    assert graph.answer(by_stripe(), BODY).status == 200  # an event is no handshake
    assert _keys(once) == ["graph:evt_1"]
    body = b'{"type": "url_verification", "challenge": "3eZbrw1a"}'
    hook = WebhookReceiver(once, Slack(SECRET), _note, name="slack")
    assert hook.answer(by_slack(body), body).body == b"3eZbrw1a"
    assert hook.answer({}, body).status == 401
    assert _keys(once) == ["graph:evt_1"]


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_accepted_event_is_answered_while_its_handler_runs(once, handled, is_async):
    go = threading.Event()

    async def awaited(event: WebhookEvent, claim: Claim) -> None:
        await asyncio.to_thread(handle, event, claim)

    def handle(event: WebhookEvent, claim: Claim) -> None:
        go.wait(60)
        handled.append((event.id, claim.attempt))

    hook = receiver(once, awaited if is_async else handle, accept=True)
    assert [(await hook.answer_async(by_stripe(), BODY)).status for _ in range(2)] == [202, 202]
    assert once.ledger.show("hooks:evt_1")[0].status == "IN_PROGRESS"
    go.set()
    async with asyncio.timeout(60):
        while once.ledger.show("hooks:evt_1")[0].status != "COMPLETED":
            await asyncio.sleep(0.01)
    assert (await hook.answer_async(by_stripe(), BODY)).status == 202
    assert handled == [("evt_1", 1)]


def test_accepted_events_start_no_more_threads_than_there_is_room_for(once, handled, monkeypatch):
    monkeypatch.setattr("onceward.web.webhooks.receiver._MOST", 2)
    monkeypatch.setattr("onceward.web.webhooks.receiver._PATIENCE", 0.01)
    go = threading.Event()

    def handle(event: WebhookEvent) -> None:
        go.wait(60)
        handled.append(event.id)

    hook = receiver(once, handle, accept=True)
    bodies = [b'{"type": "paid", "id": "evt_%d"}' % number for number in range(3)]
    answers = [hook.answer(by_stripe(body), body) for body in bodies]
    assert [answer.status for answer in answers] == [202, 202, 503]
    assert ("Retry-After", "1") in answers[2].headers
    go.set()
    until(lambda: len(handled) == 2)
    until(lambda: hook.answer(by_stripe(bodies[2]), bodies[2]).status == 202)
    until(lambda: len(handled) == 3)


def test_the_handler_of_an_accepted_event_can_give_it_to_another_receiver(once, handled):
    def handle(event: WebhookEvent) -> None:
        other(event)

    other = WebhookReceiver(once, Stripe(SECRET), lambda event: handled.append(event.id), name="other")
    assert receiver(once, handle, accept=True).answer(by_stripe(), BODY).status == 202
    until(lambda: once.ledger.show("hooks:evt_1")[0].status != "IN_PROGRESS")
    assert [once.ledger.show(f"{name}:evt_1")[0].status for name in ("hooks", "other")] == ["COMPLETED"] * 2
    assert handled == ["evt_1"]


def test_an_accepted_event_that_fails_is_handled_again_from_the_ledger(once, handled, caplog):
    def handle(event: WebhookEvent) -> None:
        handled.append(event)
        if len(handled) == 1:
            raise LookupError("no such order")

    hook = receiver(once, handle, accept=True)
    assert hook.answer(by_stripe(), BODY).status == 202
    until(lambda: "no such order" in caplog.text)
    assert once.ledger.show("hooks:evt_1")[0].status == "RELEASED"
    assert once.complete_lapsed(hook, released=0.0).completed == 1
    assert handled[0] == handled[1]


def test_an_accepted_event_that_is_parked_tells_its_reader_to_unpark_it(once, caplog):
    async def handle(event: WebhookEvent) -> None:
        raise LookupError("no such order")

    async def main():
        assert (await hook.answer_async(by_stripe(), BODY)).status == 202
        async with asyncio.timeout(60):
            while "onceward unpark hooks:evt_1" not in caplog.text:  # after the record is parked
                await asyncio.sleep(0.01)

    hook = receiver(once, handle, accept=True, on_error="park")
    asyncio.run(main())
    assert once.ledger.show("hooks:evt_1")[0].status == "PARKED"
    caplog.clear()
    assert asyncio.run(hook.answer_async(by_stripe(), BODY)).status == 202
    assert "onceward unpark KEY" in caplog.text


def _note(event: WebhookEvent) -> None:
    pass


def test_wrong_receivers_are_refused(once):
    with pytest.raises(TypeError, match="verifier"):
        WebhookReceiver(once, "secret", _note, name="hooks")
    with pytest.raises(ValueError, match="the provider would not deliver it again"):
        receiver(once, _note, on_busy="skip")
    with pytest.raises(TypeError, match="the verifier gives the key"):
        receiver(once, _note, key="event.id")
    with pytest.raises(ValueError, match="WebhookReceiver: accept=True"):
        decorated(receiver(once, _note))
    for view in (flask_view, django_view):  # when the application starts, and not at the first event
        with pytest.raises(TypeError, match="is a coroutine function"):
            view(receiver(once, _awaited))


async def _awaited(event: WebhookEvent) -> None:
    pass


async def test_fastapi_receives(once, handled):
    async def handle(event: WebhookEvent) -> Answer:
        handled.append(event.kind)
        return Answer(200, [("Link", "a"), ("Link", "b")], b"ok")

    app = FastAPI()

    async def read(request: Request):
        await request.body()

    app.add_api_route("/stripe", endpoint(receiver(once, handle)), methods=["POST"], dependencies=[Depends(read)])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        for _ in range(2):
            told = await client.post("/stripe", content=BODY, headers=by_stripe())
            assert (told.text, told.headers.get_list("link")) == ("ok", ["a", "b"])
        assert (await client.post("/stripe", content=BODY)).status_code == 401
        twice = [("Stripe-Signature", "t=1,v1=a"), *by_stripe().items()]  # WSGI joins them: t=1 is too old
        assert (await client.post("/stripe", content=BODY, headers=twice)).status_code == 401
        assert (await client.post("/stripe", content=bytes(25 << 20))).status_code == 401
        assert (await client.post("/stripe", content=bytes((25 << 20) + 1))).status_code == 413
    assert handled == ["paid"]


def test_flask_receives(once, handled):
    app = flask.Flask("shop")
    hook = receiver(once, handled.append, handshake=meta_handshake("t"))
    app.add_url_rule("/stripe", "stripe", flask_view(hook), methods=["GET", "POST"])
    client = app.test_client()
    assert [client.post("/stripe", data=BODY, headers=by_stripe()).text for _ in range(2)] == ["ok"] * 2
    assert client.post("/stripe", data=BODY).status_code == 401
    assert client.get("/stripe?hub.mode=subscribe&hub.verify_token=t&hub.challenge=7").text == "7"
    assert len(handled) == 1


def test_django_receives(once, handled):
    csrf = ["django.middleware.csrf.CsrfViewMiddleware"]
    with override_settings(ROOT_URLCONF=(path("hook", django_view(receiver(once, handled.append))),), MIDDLEWARE=csrf):
        client = Client(enforce_csrf_checks=True)
        for headers, status in ((by_stripe(), 200), (by_stripe(), 200), ({}, 401)):
            assert client.post("/hook", BODY, "application/json", headers=headers).status_code == status
        assert client.get("/hook").status_code == 405
    assert len(handled) == 1
