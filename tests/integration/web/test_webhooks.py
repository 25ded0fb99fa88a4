"""Webhooks: only what the provider has signed is taken; SNS signs with a certificate, and asks for subscriptions to be confirmed."""

import base64
import datetime as dt
import hmac
import http.client
import json
import urllib.error

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from onceward import Once
from onceward.web import webhooks
from onceward.web.webhooks import GitHub, Shopify, SignatureRefused, Slack, Sns, StandardWebhooks, Stripe
from tables import each
from web.signed import BODY, SECRET, by_slack, by_standard, by_stripe, by_svix, now

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
        (ours, {name: "é" + value for name, value in sign().items()}, body),
    ]:
        with pytest.raises(SignatureRefused):
            one.verify(headers, sent)


@each("secret", [f"{SECRET}\n", ""])
@each("made", [GitHub, Stripe, StandardWebhooks, Slack, Shopify])
def test_a_secret_that_is_missing_or_was_pasted_wrongly_is_refused_with_what_to_do(made, secret):
    with pytest.raises((ValueError, TypeError), match=r"strip|secret") as refused:
        made(secret)
    assert SECRET[6:] not in str(refused.value)
    with pytest.raises(ValueError, match="secret"):
        made()


def test_standard_webhooks_sign_their_id_and_need_a_key():
    headers = by_standard()
    headers["svix-id"] = headers.pop("webhook-id")
    for changed in ({**by_standard(), "webhook-id": "msg_2"}, headers):
        with pytest.raises(SignatureRefused):
            StandardWebhooks(SECRET).verify(changed, BODY)
    with pytest.raises(ValueError, match="anybody"):
        StandardWebhooks("whsec_")


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
    headers = {"x-shopify-shop-domain": "a.myshopify.com", "x-shopify-topic": "orders/paid", "x-shopify-event-id": "7"}
    verifier = Shopify("secret")
    headers["x-shopify-hmac-sha256"] = base64.b64encode(hmac.digest(b"secret", BODY, "sha256")).decode()
    event = verifier.verify(headers, BODY)
    assert event == webhooks.WebhookEvent(
        "a.myshopify.com orders/paid 7", "orders/paid", json.loads(BODY), "a.myshopify.com"
    )
    newer = {name.removeprefix("x-"): value for name, value in headers.items()}
    assert verifier.verify(newer, BODY) == event
    with pytest.raises(SignatureRefused):
        verifier.verify({**headers, **newer, "shopify-hmac-sha256": "x"}, BODY)
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
        by_sns(key, url="https://sns.s3.amazonaws.com/SimpleNotificationService-0.pem"),  # a bucket called sns
        by_sns(key, url="https://sns.s3-eu-west-1.amazonaws.com/SimpleNotificationService-0.pem"),
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


@each(
    ("error", "status"),
    [
        (urllib.error.HTTPError(URL, 403, "no", None, None), 401),
        (urllib.error.HTTPError(URL, 500, "no", None, None), 503),
        (http.client.IncompleteRead(b""), 503),
    ],
)
def test_only_a_certificate_that_is_not_there_refuses_a_message_for_good(authority, error, status):
    def fetch(url):
        raise error

    hook = webhooks.WebhookReceiver(Once("memory:"), Sns(TOPIC, fetch=fetch), print, name="hooks")
    assert hook.answer({}, json.dumps(by_sns(authority[0])).encode()).status == status  # SNS drops what gets 4xx


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
