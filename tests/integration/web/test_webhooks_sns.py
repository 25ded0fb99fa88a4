"""Webhooks of SNS: by certificate and topic, and subscriptions that are confirmed."""

import base64
import datetime as dt
import http.client
import json
import urllib.error

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from onceward import Once
from onceward.web.webhooks import SignatureRefused, Sns, WebhookReceiver
from tables import each
from web.signed import now

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

    hook = WebhookReceiver(Once("memory:"), Sns(TOPIC, fetch=fetch), print, name="hooks")
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
