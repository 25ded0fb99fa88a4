"""Lambda functions behind API Gateway, function URLs and load balancers: one effect for each idempotency key or webhook."""

import base64
import hashlib
import hmac
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from types import SimpleNamespace

import pytest

from onceward import Claim, Once, current
from onceward.aws import MalformedEvent, on_webhook
from onceward.core.record import COMPLETED
from onceward.web import Route
from onceward.web.webhooks import GitHub, WebhookReceiver, meta_handshake
from tables import each
from waiting import within
from web.api_events import BODY, Context, Shop, balancer, header, http, keyed, rest, served, source, url
from web.asgi import records
from web.calls import Rules, on_api

pytestmark = pytest.mark.sampled(once=1)


def kind_of(response):
    assert header(response, "content-type") == ["application/problem+json"]
    assert response["isBase64Encoded"] is False
    return json.loads(response["body"])["type"].partition("#")[2]


ONE, SEVERAL = {"c": "1"}, {"c": ["1"]}
QUERIES = {"queryStringParameters": ONE, "multiValueQueryStringParameters": SEVERAL, "rawQueryString": "c=1"}


@source
def test_another_payload_under_the_key_is_422_and_a_missing_or_double_key_400(once, shop, source):
    handler = served(once, shop)
    handler(keyed(source))
    query = keyed(source)
    query |= {name: value for name, value in QUERIES.items() if name in query}
    price = keyed(source, body={**BODY, "price": 13})
    for changed in (query, price, keyed(source, path="/refunds"), keyed(source, method="PATCH")):
        response = handler(changed)
        assert (response["statusCode"], kind_of(response)) == (422, "reused")
    assert (handler(source())["statusCode"], kind_of(handler(source()))) == (400, "missing")
    if source is not balancer:  # a plain load balancer tells the last line only
        response = handler(source(headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b")]))
        assert (response["statusCode"], kind_of(response)) == (400, "malformed")
    encoded = base64.b64encode(json.dumps(BODY).encode()).decode()
    assert handler(keyed(source, body=encoded, isBase64Encoded=True))["statusCode"] == 201  # the same body
    assert len(shop.effects) == 1


@source
def test_cookies_are_not_replayed_and_bytes_come_back_as_they_were(once, source):
    image = bytes(range(256))
    shop = Shop(
        {
            "statusCode": HTTPStatus.OK,
            "headers": {"Set-Cookie": "a=1", "X-Kept": "1"},
            "multiValueHeaders": {"set-cookie": ["b=2"]},
            "cookies": ["c=3"],
            "body": base64.b64encode(image).decode(),
            "isBase64Encoded": True,
        }
    )
    handler = served(once, shop)
    handler(keyed(source))
    again = handler(keyed(source))
    assert (header(again, "set-cookie"), "cookies" in again, header(again, "x-kept")) == ([], False, ["1"])
    assert "cookie" not in records(once)[0].result.lower()
    assert again["isBase64Encoded"] is True
    assert base64.b64decode(again["body"]) == image


def test_a_concurrent_duplicate_is_409_or_waits_but_not_beyond_the_time_of_the_invocation(once):
    shop, began, go_on = Shop(), threading.Event(), threading.Event()

    def slow(event, context=None):
        began.set()
        assert go_on.wait(30)
        return shop(event)

    handler, patient = served(once, slow), served(once, slow, wait=600)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(handler, keyed(http))
        assert began.wait(30)
        busy = handler(keyed(http))
        assert (busy["statusCode"], kind_of(busy)) == (409, "in-flight")
        assert within(1.3, lambda _: patient(keyed(http), Context(1.3)))["statusCode"] == 409
        second = pool.submit(patient, keyed(http))
        go_on.set()
        assert first.result(30)["body"] == second.result(30)["body"] == '{"id": 1}'
    assert len(shop.effects) == 1


def test_a_function_that_is_killed_leaves_the_key_to_the_next(once, shop):
    """Lambda stops a function that is out of time; what it leaves behind is a claim that nobody ends."""

    def killed(event, context):
        raise SystemExit

    with pytest.raises(SystemExit):
        served(once, killed, lease=900)(keyed(http), Context(0.2))
    handler = served(once, shop)
    assert handler(keyed(http))["statusCode"] == 409
    end = time.monotonic() + 30
    while (response := handler(keyed(http)))["statusCode"] == 409:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert response["statusCode"] == 201
    assert len(shop.effects) == 1


def test_a_coroutine_function_is_served_the_same(once, shop):
    async def function(event, context):
        return shop(event)

    handler = served(once, function)
    assert [handler(keyed(http))["body"] for _ in range(2)] == ['{"id": 1}'] * 2
    assert handler(http(method="GET"))["body"] == '{"id": 2}'


@source
def test_a_function_may_complete_its_claim_with_its_response(once, source):
    response = {"statusCode": 201, "headers": {"X-A": "1", "Set-Cookie": "a=1"}, "body": "made"}

    def function(event, context, claim: Claim | None):
        if claim:
            claim.complete(response)
        return response

    handler = served(once, function)
    assert handler(keyed(source)) is handler(source(method="GET")) is response
    again = handler(keyed(source))
    assert (again["statusCode"], again["body"]) == (201, "made")
    assert (header(again, "idempotent-replayed"), header(again, "set-cookie")) == (["true"], [])


@each("response", [None, {"body": "no status"}, {"statusCode": 99}, {"statusCode": 200, "body": 7}])
def test_a_function_whose_response_nobody_can_read_has_run_all_the_same(response):
    once, shop = Once("memory:"), Shop(response)
    handler = served(once, shop)
    assert handler(keyed(rest)) is response
    assert kind_of(handler(keyed(rest))) == "unavailable"
    assert len(shop.effects) == 1
    assert [r.status for r in records(once)] == [COMPLETED]


def test_bad_options_are_refused_when_decorating(once, shop):
    for make, error, says in (
        (lambda: on_api(Once("memory:", on_busy="skip"), name="shop")(shop), ValueError, "wait=SECONDS"),
        (lambda: on_api(once, name="shop", wait=-1)(shop), ValueError, "on_busy=-1"),
        (lambda: on_api(Once("memory:"))(lambda event, context: None), ValueError, "lambda"),
    ):
        with pytest.raises(error, match=says):
            make()


@source
def test_a_path_that_comes_percent_encoded_is_guarded(once, shop, source):
    handler = served(once, shop, Rules(Route("/orders"), Route("/größen")))
    for number, path in enumerate(["/%6Frders", "/gr%C3%B6%C3%9Fen"], 1):
        event = source(path, headers=[("Idempotency-Key", f"k{number}")])
        assert [handler(event)["statusCode"] for _ in range(2)] == [201, 201]
        assert len(shop.effects) == number


HOOK = '{"zen": "ü"}'
SIGNED = "sha256=" + hmac.digest(b"secret", HOOK.encode(), hashlib.sha256).hex()
HEADERS = [("X-Hub-Signature-256", SIGNED), ("X-GitHub-Delivery", "d1"), ("X-GitHub-Event", "ping")]


def sent(source, body=HOOK):
    """A webhook, as API Gateway or a function URL passes it on."""
    if source is url:
        body, more = base64.b64encode(body.encode()).decode(), {"isBase64Encoded": True}
    return source("/github", body=body, headers=HEADERS, **(more if source is url else {}))


def receiver(handler, **options):
    return WebhookReceiver(Once("memory:"), GitHub("secret"), handler, name="github", **options)


@each("source", [url, rest])
def test_an_event_is_handled_once_and_a_forged_one_never(source):
    handled = []

    async def handle(event):
        handled.append((event.id, event.kind, event.data["zen"], current().record.worker))

    handler, context = on_webhook(receiver(handle)), SimpleNamespace(aws_request_id="r-1", function_name="hooks")
    assert [handler(sent(source), context)["statusCode"] for _ in range(2)] == [200, 200]
    assert handled == [("d1", "ping", "ü", "hooks/r-1")]
    assert handler(sent(source, HOOK + " "))["statusCode"] == 401
    twice = sent(rest)
    twice["multiValueHeaders"]["X-Hub-Signature-256"].insert(0, "sha256=0")
    assert handler(twice)["statusCode"] == 401
    with pytest.raises(MalformedEvent):
        handler({"Records": []})


def test_a_handshake_gets_the_query():
    handler = on_webhook(receiver(print, handshake=meta_handshake("mine")))
    asked = "hub.mode=subscribe&hub.verify_token=mine&hub.challenge=7"
    assert handler(url(method="GET", body="", rawQueryString=asked))["body"] == "7"
    query = dict(pair.split("=") for pair in asked.split("&"))
    event = rest(method="GET", body="", queryStringParameters=query, multiValueQueryStringParameters=None)
    assert handler(event)["body"] == "7"


def test_a_failure_is_raised_and_comes_again():
    errors = [RuntimeError("bad")]

    def handle(event):
        if errors:
            raise errors.pop()

    handler = on_webhook(receiver(handle))
    with pytest.raises(RuntimeError):
        handler(sent(url))
    assert handler(sent(url))["statusCode"] == 200


def test_what_lambda_would_not_finish_is_refused():
    with pytest.raises(ValueError, match="accept=True"):
        on_webhook(receiver(print, accept=True))
    with pytest.raises(TypeError, match="give a WebhookReceiver"):
        on_webhook("sqlite:///x")
