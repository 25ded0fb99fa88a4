"""Webhooks: only what the provider has signed is recorded, and each event is handled once, whoever dies."""

import asyncio
import base64
import datetime as dt
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
from concurrent.futures import ThreadPoolExecutor

import flask
import httpx
import pytest
import slack_sdk.signature
import standardwebhooks
import stripe
import svix.webhooks
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from fastapi import FastAPI

from onceward import Busy, Claim, Once, ResultUnavailable
from onceward.claim.completer import decorated
from onceward.web import Answer
from onceward.web.webhooks import (
    GitHub,
    Shopify,
    SignatureRefused,
    Slack,
    Sns,
    StandardWebhooks,
    Stripe,
    WebhookEvent,
    WebhookReceiver,
    graph_handshake,
    meta_handshake,
)
from onceward.web.webhooks.django import view as django_view
from onceward.web.webhooks.flask import view as flask_view
from onceward.web.webhooks.starlette import endpoint
from places import SOURCES
from tables import each

SECRET = "whsec_" + base64.b64encode(b"a secret of 24 bytes, or").decode()
BODY = b'{"type": "paid", "id": "evt_1"}'


def now():
    return dt.datetime.now(dt.UTC)


# --- signatures, by the providers' own libraries --------------------------------------------------------------------


def by_standard(body=BODY, at=None, secret=SECRET, key="msg_1"):
    at = at or now()
    signed = standardwebhooks.Webhook(secret).sign(key, at, body.decode())
    return {"webhook-id": key, "webhook-timestamp": str(int(at.timestamp())), "webhook-signature": f"v1a,x {signed}"}


def by_stripe(body=BODY, at=None, secret=SECRET):
    at = int((at or now()).timestamp())
    signed = stripe.WebhookSignature._compute_signature(f"{at}.{body.decode()}", secret)
    return {"stripe-signature": f"t={at},v0=x,v1={signed}"}


def by_slack(body=b'{"event_id": "Ev1", "event": {"type": "paid"}}', at=None, secret=SECRET):
    at = str(int((at or now()).timestamp()))
    signed = slack_sdk.signature.SignatureVerifier(secret).generate_signature(timestamp=at, body=body)
    return {"x-slack-request-timestamp": at, "x-slack-signature": signed}


def by_svix(body=BODY, at=None, secret=SECRET, key="msg_1"):
    at = at or now()
    signed = svix.webhooks.Webhook(secret).sign(key, at, body.decode())
    return {"svix-id": key, "svix-timestamp": str(int(at.timestamp())), "svix-signature": signed}


PROVIDERS = {
    "svix": (by_svix, StandardWebhooks, BODY, "msg_1"),
    "standard": (by_standard, StandardWebhooks, BODY, "msg_1"),
    "stripe": (by_stripe, Stripe, BODY, "evt_1"),
    "slack": (by_slack, Slack, b'{"event_id": "Ev1", "event": {"type": "paid"}}', "Ev1"),
}


@each("provider", PROVIDERS)
def test_what_a_providers_library_signs_is_taken(provider):
    sign, verifier, body, key = PROVIDERS[provider]
    event = verifier(SECRET).verify(sign(), body)
    assert (event.id, event.kind, event.data) == (key, "paid", json.loads(body))
    other = "whsec_" + base64.b64encode(b"another secret").decode()
    assert verifier(other, SECRET).verify(sign(), body) == event


@each("provider", PROVIDERS)
def test_a_changed_body_an_old_time_and_another_secret_are_refused(provider):
    sign, verifier, body, _ = PROVIDERS[provider]
    ours, other = verifier(SECRET), verifier("whsec_" + base64.b64encode(b"another secret").decode())
    long = dt.timedelta(seconds=310)
    for one, headers, sent in [
        (ours, sign(), body + b" "),
        (ours, sign(at=now() - long), body),
        (ours, sign(at=now() + long), body),
        (other, sign(), body),
        (ours, {}, body),
        (ours, dict.fromkeys(sign(), ""), body),
        (ours, {name: value + "x" for name, value in sign().items()}, body),
        (ours, {name: "é" + value for name, value in sign().items()}, body),
    ]:
        with pytest.raises(SignatureRefused):
            one.verify(headers, sent)


@each("name", ["id", "timestamp", "signature"])
def test_the_two_names_of_a_header_are_never_mixed(name):
    headers = by_standard()
    headers[f"svix-{name}"] = headers.pop(f"webhook-{name}")
    with pytest.raises(SignatureRefused):
        StandardWebhooks(SECRET).verify(headers, BODY)


@each("secret", [f"{SECRET}\n", f" {SECRET}", f"v1,{SECRET}", [SECRET], b"bytes", 7])
@each("made", [GitHub, Stripe, StandardWebhooks, Slack, Shopify])
def test_a_secret_that_was_pasted_wrongly_is_refused_with_what_to_do(made, secret):
    with pytest.raises((ValueError, TypeError), match=r"strip|from whsec_ on|as a text") as refused:
        made(secret)
    assert SECRET[6:] not in str(refused.value)


def test_a_standard_secret_without_a_key_is_refused():
    with pytest.raises(ValueError, match="anybody"):
        StandardWebhooks("whsec_")


def test_the_id_of_standard_webhooks_is_signed():
    with pytest.raises(SignatureRefused):
        StandardWebhooks(SECRET).verify({**by_standard(), "webhook-id": "msg_2"}, BODY)


def test_githubs_own_example_is_taken():
    # docs.github.com, "Validating webhook deliveries", "Testing the webhook payload validation"
    signed = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    headers = {"x-hub-signature-256": signed, "x-github-delivery": "1", "x-github-event": "ping"}
    verifier = GitHub("It's a Secret to Everybody")
    with pytest.raises(ValueError, match="no JSON"):
        verifier.verify(headers, b"Hello, World!")
    with pytest.raises(SignatureRefused):
        verifier.verify(headers, b"Hello, World?")
    with pytest.raises(SignatureRefused):
        verifier.verify({"x-github-delivery": "1"}, b"Hello, World!")


def test_shopifys_key_has_the_shop_and_the_topic():
    headers = {
        "x-shopify-shop-domain": "a.myshopify.com",
        "x-shopify-topic": "orders/paid",
        "x-shopify-event-id": "7",
    }
    verifier = Shopify("secret")
    done = subprocess.run(
        ["openssl", "dgst", "-sha256", "-hmac", "secret", "-binary"], input=BODY, capture_output=True, check=True
    )
    headers["x-shopify-hmac-sha256"] = base64.b64encode(done.stdout).decode()
    event = verifier.verify(headers, BODY)
    assert event == WebhookEvent("a.myshopify.com orders/paid 7", "orders/paid", json.loads(BODY), "a.myshopify.com")
    newer = {name.removeprefix("x-"): value for name, value in headers.items()}
    assert verifier.verify(newer, BODY) == event
    with pytest.raises(SignatureRefused):
        verifier.verify(
            newer | {"shopify-hmac-sha256": "x", "x-shopify-hmac-sha256": newer["shopify-hmac-sha256"]}, BODY
        )
    del headers["x-shopify-event-id"]
    with pytest.raises(ValueError, match="no webhook-id"):
        verifier.verify(headers, BODY)
    assert verifier.verify(headers | {"x-shopify-webhook-id": "8"}, BODY).id.endswith(" 8")


TOPIC = "arn:aws:sns:eu-west-1:123456789012:orders"
URL = "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-0123abc.pem"


@pytest.fixture(scope="module")
def authority():
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sns.amazonaws.com")])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now()).not_valid_after(now() + dt.timedelta(days=1))
    return key, made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def by_sns(key, version="2", url=URL, **more):
    data = {"Type": "Notification", "MessageId": "m-1", "TopicArn": TOPIC, "Message": "hi", "Timestamp": "now"} | more
    names = ("Message", "MessageId", "Subject", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")
    text = "".join(f"{name}\n{data[name]}\n" for name in names if name in data)
    digest = hashes.SHA1() if version == "1" else hashes.SHA256()
    signed = base64.b64encode(key.sign(text.encode(), padding.PKCS1v15(), digest)).decode()
    return data | {"Signature": signed, "SignatureVersion": version, "SigningCertURL": url}


def test_a_subscription_of_a_known_topic_is_confirmed_at_an_address_of_sns_and_else_refused(authority):
    key, certificate = authority
    fetches, down = [], []

    def fetch(url):
        fetches.append(url)
        if down and url != URL:
            raise OSError("no route")
        return certificate

    verifier = Sns(TOPIC, confirm=True, fetch=fetch)
    asked = "https://sns.eu-west-1.amazonaws.com/?Action=ConfirmSubscription&Token=t"
    told = by_sns(key, Type="SubscriptionConfirmation", SubscribeURL=asked, Token="t")
    assert verifier.verify({}, json.dumps(told).encode()).status == 200
    assert fetches == [URL, asked]
    down.append(True)
    assert verifier.verify({}, json.dumps(told).encode()).status == 503
    elsewhere = by_sns(key, Type="SubscriptionConfirmation", SubscribeURL="https://sns.evil.example/", Token="t")
    with pytest.raises(ValueError, match="not at an address of SNS"):
        verifier.verify({}, json.dumps(elsewhere).encode())
    assert verifier.verify({}, json.dumps(by_sns(key)).encode()).kind == "Notification"


def test_sns_messages_are_taken_by_certificate_and_topic(authority):
    key, certificate = authority
    fetches = []
    verifier = Sns(TOPIC, fetch=lambda url: fetches.append(url) or certificate)
    for version in ("1", "2"):
        event = verifier.verify({}, json.dumps(by_sns(key, version, Subject="s")).encode())
        assert (event.id, event.kind, event.source) == ("m-1", "Notification", TOPIC)
    confirm = by_sns(key, Type="SubscriptionConfirmation", SubscribeURL="https://x", Token="t")
    assert verifier.verify({}, json.dumps(confirm).encode()).kind == "SubscriptionConfirmation"
    assert fetches == [URL]
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    for wrong in (
        by_sns(key) | {"Message": "changed"},
        by_sns(other),
        by_sns(key, TopicArn=TOPIC + "2"),
        by_sns(key, url="https://sns.eu-west-1.amazonaws.com.evil.example/SimpleNotificationService-0.pem"),
        by_sns(key, url="http://sns.eu-west-1.amazonaws.com/SimpleNotificationService-0.pem"),
        by_sns(key) | {"SignatureVersion": "3"},
        by_sns(key) | {"Signature": "é"},
        by_sns(key) | {"TopicArn": [TOPIC]},
        {},
    ):
        with pytest.raises(SignatureRefused):
            verifier.verify({}, json.dumps(wrong).encode())
    with pytest.raises(SignatureRefused):
        verifier.verify({}, b'{"a":' + b"[" * 100_000)


@pytest.mark.parametrize(("code", "status"), [(403, 401), (500, 503)])
def test_only_a_certificate_that_is_not_there_refuses_a_message_for_good(once, authority, code, status):
    def fetch(url):
        raise urllib.error.HTTPError(url, code, "no", None, None)

    hook = WebhookReceiver(once, Sns(TOPIC, fetch=fetch), _note, name="hooks")
    assert hook.answer({}, json.dumps(by_sns(authority[0])).encode()).status == status


def test_forged_messages_fetch_one_certificate_at_a_time(authority):
    under_way, most = [], []

    def fetch(url):
        under_way.append(url)
        most.append(len(under_way))
        time.sleep(0.05)
        under_way.pop()
        raise urllib.error.HTTPError(url, 403, "no", None, None)

    def forged(number):
        message = by_sns(authority[0], url=URL.replace("0123abc", str(number)))
        with pytest.raises(SignatureRefused):
            verifier.verify({}, json.dumps(message).encode())

    verifier = Sns(TOPIC, fetch=fetch)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(forged, range(8)))
    assert most == [1] * 8


def test_the_signed_lines_of_an_sns_message_cannot_give_it_another_id(authority):
    key, certificate = authority
    verifier = Sns(TOPIC, fetch=lambda _: certificate)
    for signed, forged in (
        ({}, {"MessageId": "m-1\nTimestamp\nnow", "Timestamp": None}),
        ({"Subject": "s"}, {"MessageId": "m-1\nSubject\ns", "Subject": None}),
        (
            {"Message": "hi\nMessageId\nm-2\nSubject\ns"},
            {"Message": "hi", "MessageId": "m-2", "Subject": "s\nMessageId\nm-1"},
        ),
    ):
        data = by_sns(key, **signed)
        assert verifier.verify({}, json.dumps(data).encode()).id == "m-1"
        with pytest.raises(SignatureRefused):
            verifier.verify({}, json.dumps(data | forged).encode())


@each("made", [GitHub, Stripe, StandardWebhooks, Slack, Shopify, Sns])
def test_a_missing_secret_is_refused(made):
    with pytest.raises(ValueError, match=r"secret|ARN"):
        made()
    with pytest.raises(ValueError, match=r"secret|ARN"):
        made("")


# --- answers --------------------------------------------------------------------------------------------------------


@pytest.fixture
def once(tmp_path):
    made = Once(f"sqlite:///{tmp_path}/ledger.db")
    yield made
    made.close()


def _keys(once):
    return [record.key for record, _ in once.ledger.records()]


@pytest.fixture
def handled():
    return []


def receiver(once, handler, **options):
    return WebhookReceiver(once, Stripe(SECRET), handler, name="hooks", **options)


def test_a_body_that_is_not_quite_json_is_400_and_says_where(once, caplog):
    body = b'{"type": "paid", "id": "evt_1", "n": NaN}'
    answer = receiver(once, lambda event: None).answer(by_stripe(body), body)
    assert answer.status == 400
    assert "malformed: " in caplog.text
    assert "NaN at byte 37" in caplog.text


def test_an_event_is_handled_once_and_a_forged_one_leaves_nothing(once, handled):
    hook = receiver(once, lambda event: handled.append(event.id))
    assert hook.answer({}, BODY).status == 401
    assert hook.answer(by_stripe(b"[]"), b"[]").status == 400
    assert hook.answer(by_stripe(b"{}"), b"{}").status == 400
    assert _keys(once) == []
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


@each("error", [ResultUnavailable("other", "too large"), Busy("other", 5.0)])
def test_an_error_of_a_function_that_the_handler_calls_is_a_failure(once, error):
    def handle(event):
        raise error

    async def handle_async(event):
        raise error

    for number, handler in enumerate((handle, handle_async)):
        hook = WebhookReceiver(once, Stripe(SECRET), handler, name=f"hooks{number}")
        with pytest.raises(type(error)):  # an answer of 200 would lose the event
            asyncio.run(hook.answer_async(by_stripe(), BODY))


XML = Answer(200, [("Content-Type", "text/xml")], b"<Response/>")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_gives_the_answer_and_duplicates_get_the_same(once, is_async):
    answers = [XML, Answer(204), Answer(202, [("X-Odd", "\u00e9")], b"\xff\x00"), Answer(422, (), b"no")]
    for number, given in enumerate(answers):
        calls = []

        def handle(event, calls=calls, given=given):
            calls.append(event)
            return given

        async def handle_async(event, handle=handle):
            return handle(event)

        hook = WebhookReceiver(once, Stripe(SECRET), handle_async if is_async else handle, name=f"hooks{number}")
        first, again = (asyncio.run(hook.answer_async(by_stripe(), BODY)) for _ in range(2))
        assert (first.status, first.body, list(first.headers)) == (given.status, given.body, list(given.headers))
        assert again == first
        assert len(calls) == 1


def test_an_answer_that_says_that_it_failed_is_no_outcome(once):
    hook = receiver(once, lambda event: Answer(503))
    for _ in range(2):  # the key was given back
        with pytest.raises(ValueError, match="raise an exception"):
            hook.answer(by_stripe(), BODY)


def test_handshakes_are_answered_and_not_recorded(once):
    meta = receiver(once, _note, handshake=meta_handshake("my token"))
    asked = {"hub.mode": "subscribe", "hub.verify_token": "my token", "hub.challenge": "115"}
    assert meta.answer({}, b"", method="GET", query=asked).body == b"115"
    assert meta.answer({}, b"", method="GET", query={**asked, "hub.verify_token": "another"}).status == 403
    assert meta.answer({}, b"", method="GET").status == 405
    graph = WebhookReceiver(once, Stripe(SECRET), _note, name="graph", handshake=graph_handshake)
    assert graph.answer({}, b"", query={"validationToken": "a <b>"}) == (
        200,
        (("Content-Type", "text/plain; charset=utf-8"),),
        b"a <b>",
    )
    assert graph.answer(by_stripe(), BODY).status == 200  # an event is no handshake
    assert _keys(once) == ["graph:evt_1"]


def test_slacks_question_is_answered_with_its_challenge(once):
    body = b'{"type": "url_verification", "challenge": "3eZbrw1a"}'
    hook = WebhookReceiver(once, Slack(SECRET), _note, name="slack")
    assert hook.answer(by_slack(body), body).body == b"3eZbrw1a"
    assert hook.answer({}, body).status == 401
    assert _keys(once) == []


def test_an_event_without_an_id_is_not_accepted(once, handled):
    class Own:
        def verify(self, headers, body):
            return WebhookEvent("", "paid", {"challenge": "x"})

    hook = WebhookReceiver(once, Own(), _note, name="own")
    assert hook.answer({}, b"").status == 400
    assert handled == []


def test_an_accepted_event_is_answered_while_its_handler_runs(once, handled):
    go = threading.Event()

    def handle(event: WebhookEvent) -> None:
        go.wait(60)
        handled.append(event.id)

    hook = receiver(once, handle, accept=True)
    assert [hook.answer(by_stripe(), BODY).status for _ in range(2)] == [202, 202]
    assert once.ledger.show("hooks:evt_1")[0].status == "IN_PROGRESS"
    go.set()
    _until(lambda: once.ledger.show("hooks:evt_1")[0].status == "COMPLETED")
    assert hook.answer(by_stripe(), BODY).status == 202
    assert handled == ["evt_1"]


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
    _until(lambda: len(handled) == 2)
    _until(lambda: hook.answer(by_stripe(bodies[2]), bodies[2]).status == 202)
    _until(lambda: len(handled) == 3)


def test_an_accepted_event_of_a_coroutine_is_answered_while_it_runs(once, handled):
    async def handle(event: WebhookEvent, claim: Claim) -> None:
        await go.wait()
        handled.append((event.id, claim.attempt))

    async def run():
        assert [(await hook.answer_async(by_stripe(), BODY)).status for _ in range(2)] == [202, 202]
        go.set()
        while once.ledger.show("hooks:evt_1")[0].status != "COMPLETED":
            await asyncio.sleep(0.01)

    go = asyncio.Event()
    hook = receiver(once, handle, accept=True)
    asyncio.run(run())
    assert handled == [("evt_1", 1)]


@pytest.mark.parametrize("is_async", [False, True])
def test_the_handler_of_an_accepted_event_can_give_it_to_another_receiver(once, handled, is_async):
    async def awaited(event: WebhookEvent) -> None:
        await other(event)

    def handle(event: WebhookEvent) -> None:
        other(event)

    async def note(event: WebhookEvent) -> None:
        handled.append(event.id)

    async def main():
        assert (await hook.answer_async(by_stripe(), BODY)).status == 202
        async with asyncio.timeout(60):
            while once.ledger.show("hooks:evt_1")[0].status == "IN_PROGRESS":
                await asyncio.sleep(0.01)

    other = WebhookReceiver(once, Stripe(SECRET), note if is_async else lambda e: handled.append(e.id), name="other")
    hook = receiver(once, awaited if is_async else handle, accept=True)
    asyncio.run(main())
    assert [once.ledger.show(f"{name}:evt_1")[0].status for name in ("hooks", "other")] == ["COMPLETED"] * 2
    assert handled == ["evt_1"]


def test_an_accepted_event_that_fails_is_handled_again_from_the_ledger(once, handled):
    def handle(event: WebhookEvent) -> None:
        handled.append(event)
        if len(handled) == 1:
            raise LookupError("no such order")

    hook = receiver(once, handle, accept=True)
    assert hook.answer(by_stripe(), BODY).status == 202
    _until(lambda: once.ledger.show("hooks:evt_1")[0].status == "RELEASED")
    assert once.complete_lapsed(hook, released=0.0).completed == 1
    assert handled[0] == handled[1]


@pytest.mark.parametrize("is_async", [False, True])
def test_an_accepted_event_that_is_parked_tells_its_reader_to_unpark_it(once, caplog, is_async):
    async def awaited(event: WebhookEvent) -> None:
        raise LookupError("no such order")

    def handle(event: WebhookEvent) -> None:
        raise LookupError("no such order")

    async def main():
        assert (await hook.answer_async(by_stripe(), BODY)).status == 202
        async with asyncio.timeout(60):
            while (
                "onceward unpark hooks:evt_1" not in caplog.text
            ):  # after the record is parked, and before the loop ends
                await asyncio.sleep(0.01)

    hook = receiver(once, awaited if is_async else handle, accept=True, on_error="park")
    asyncio.run(main())
    assert once.ledger.show("hooks:evt_1")[0].status == "PARKED"
    caplog.clear()
    assert asyncio.run(hook.answer_async(by_stripe(), BODY)).status == 202
    assert "onceward unpark KEY" in caplog.text
    once.ledger.unpark("hooks:evt_1")
    again = asyncio.run(once.complete_lapsed_async(hook, released=0.0))
    assert again.failed == 1


def test_a_certificate_that_is_slow_or_torn_holds_up_nobody_else(once, authority):
    async def handle(event: WebhookEvent) -> None: ...

    def fetch(url):
        fetching.set()
        assert others.wait(60)
        raise http.client.IncompleteRead(b"")

    async def main():
        asked = asyncio.ensure_future(hook.answer_async({}, json.dumps(by_sns(authority[0])).encode()))
        while not fetching.is_set():
            await asyncio.sleep(0.01)
        others.set()  # the loop goes on meanwhile
        assert (await asked).status == 503  # SNS drops what is refused with 4xx

    fetching, others = threading.Event(), threading.Event()
    hook = WebhookReceiver(once, Sns(TOPIC, fetch=fetch), handle, name="hooks")
    asyncio.run(main())


def test_without_the_ledger_nothing_is_accepted(once, handled, tmp_path):
    away = Once(f"sqlite:///{tmp_path}/no/such/folder/ledger.db")
    for accept in (False, True):
        hook = receiver(away, handled.append, accept=accept)
        assert hook.answer(by_stripe(), BODY).status == 503
    assert handled == []


def test_an_event_too_large_to_keep_is_not_accepted(once, handled):
    body = json.dumps({"id": "evt_1", "type": "x", "data": "x" * 70_000}).encode()
    hook = receiver(once, _note, accept=True)
    with pytest.raises(Exception, match="keeps at most 65536 bytes"):
        hook.answer(by_stripe(body), body)
    assert _keys(once) == []


def _note(event: WebhookEvent) -> None:
    pass


WORKER = """
import sys, time
from onceward import Once
from onceward.web.webhooks import Stripe, WebhookEvent, WebhookReceiver

def handle(event: WebhookEvent) -> None:
    if sys.argv[3:]:
        print("begun", flush=True)
        time.sleep(600)
    open(sys.argv[2], "a").write(event.id + chr(10))

once = Once(sys.argv[1])
hook = WebhookReceiver(once, Stripe("x"), handle, name="hooks", accept=True, lease=0.5)
"""


def test_an_accepted_event_of_a_killed_process_is_handled_by_another(once, tmp_path):
    (tmp_path / "shop.py").write_text(WORKER)
    environment = {**os.environ, "PYTHONPATH": f"{SOURCES}:{tmp_path}"}
    arguments = [once.store.url, tmp_path / "handled"]
    dies = (
        "import shop; from onceward.web.webhooks import WebhookEvent; shop.hook(WebhookEvent('evt_1', 'x', {'a': 1}))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", dies, *arguments, "hang"], env=environment, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"begun\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    time.sleep(0.6)
    again = "import shop; print(shop.once.complete_lapsed(shop.hook))"
    told = subprocess.run(
        [sys.executable, "-c", again, *arguments], env=environment, capture_output=True, text=True, check=True
    )
    assert "completed=1" in told.stdout
    assert (tmp_path / "handled").read_text() == "evt_1\n"


def test_a_receiver_that_would_answer_200_for_what_is_not_done_is_refused(once):
    with pytest.raises(ValueError, match="the provider would not deliver it again"):
        receiver(once, print, on_busy="skip")


def test_wrong_receivers_are_refused(once):
    with pytest.raises(TypeError, match="verifier"):
        WebhookReceiver(once, "secret", _note, name="hooks")
    with pytest.raises((TypeError, ValueError)):
        receiver(once, once(key="event.id", name="x")(_note))
    with pytest.raises(TypeError, match="the verifier gives the key"):
        receiver(once, _note, key="event.id")
    with pytest.raises(ValueError, match="WebhookReceiver: accept=True"):
        decorated(receiver(once, _note))
    with pytest.raises(TypeError, match="answer_async"):
        receiver(once, _awaited).answer(by_stripe(), BODY)
    for view in (flask_view, django_view):  # when the application starts, and not at the first event
        with pytest.raises(TypeError, match="is a coroutine function"):
            view(receiver(once, _awaited))


async def _awaited(event: WebhookEvent) -> None:
    pass


# --- frameworks -----------------------------------------------------------------------------------------------------


def test_fastapi_receives(once, handled):
    async def handle(event: WebhookEvent) -> None:
        handled.append(event.kind)

    app = FastAPI()
    app.add_api_route("/stripe", endpoint(receiver(once, handle)), methods=["POST"])
    app.add_api_route(
        "/plain", endpoint(WebhookReceiver(once, Stripe(SECRET), handled.append, name="p")), methods=["POST"]
    )

    async def run():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
            for path in ("/stripe", "/plain"):
                for _ in range(2):
                    assert (await client.post(path, content=BODY, headers=by_stripe())).text == "ok"
                assert (await client.post(path, content=BODY)).status_code == 401
                assert (await client.post(path, content=bytes(25 << 20))).status_code == 401
                assert (await client.post(path, content=bytes((25 << 20) + 1))).status_code == 413

    asyncio.run(run())
    assert (handled[0], handled[1].id, len(handled)) == ("paid", "evt_1", 2)


def test_flask_receives(once, handled):
    app = flask.Flask("shop")
    hook = receiver(once, handled.append, handshake=meta_handshake("t"))
    app.add_url_rule("/stripe", "stripe", flask_view(hook), methods=["GET", "POST"])
    client = app.test_client()
    assert [client.post("/stripe", data=BODY, headers=by_stripe()).text for _ in range(2)] == ["ok"] * 2
    assert client.post("/stripe", data=BODY).status_code == 401
    assert client.get("/stripe?hub.mode=subscribe&hub.verify_token=t&hub.challenge=7").text == "7"
    assert len(handled) == 1


DJANGO = """
import sys
from django.conf import settings
settings.configure(ALLOWED_HOSTS=["*"], MIDDLEWARE=["django.middleware.csrf.CsrfViewMiddleware"], ROOT_URLCONF="__main__")
import django
django.setup()
from django.test import Client
from django.urls import path
from onceward import Once
from onceward.web.webhooks import GitHub, WebhookReceiver
from onceward.web.webhooks.django import view

once, handled = Once(sys.argv[1]), []
hook = WebhookReceiver(once, GitHub("secret"), lambda event: handled.append(event.id), name="hooks")
urlpatterns = [path("github", view(hook))]
client = Client(enforce_csrf_checks=True)
import hashlib, hmac
signed = "sha256=" + hmac.new(b"secret", b"{}", hashlib.sha256).hexdigest()
headers = {"X-GitHub-Delivery": "1", "X-GitHub-Event": "ping", "X-Hub-Signature-256": signed}
for given in (headers, headers, {}):
    print(client.post("/github", b"{}", content_type="application/json", headers=given).status_code)
print(client.get("/github").status_code, handled)
"""


def test_django_receives(once):
    command = [sys.executable, "-c", DJANGO, once.store.url]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.split("\n")[:4] == ["200", "200", "401", "405 ['1']"]


def _until(condition):
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come")
