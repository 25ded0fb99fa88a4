"""Deliveries as senders sign them: vectors of their own libraries and documents. Each is taken, and every change of it is refused."""

import base64
import binascii
import datetime as dt
import hashlib
import hmac
import itertools
import json
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from onceward import Once
from onceward.web import webhooks
from tables import each

EVER = float("inf")
SECRET = "a secret"


def signed(body, form="{}", before=b"", secret=SECRET):
    return form.format(hmac.digest(secret.encode(), before + body, hashlib.sha256).hex())


SQUARE = (
    b'{"merchant_id":"MLEFBHHSJGVHD","type":"webhooks.test_notification","event_id":"ac3ac95b-f97d-458c-a6e6-18981597e05f",'
    b'"created_at":"2022-07-13T20:30:59.037339943Z","data":{"type":"webhooks","id":"bc368e64-01aa-407e-b46e-3231809b1129"}}'
)
TWILIO = b"CallSid=CA1234567890ABCDE&Caller=%2B14158675309&Digits=1234&From=%2B14158675309&To=%2B18005551212"
SENDGRID = (
    b'[{"email":"hello@world.com","event":"dropped","reason":"Bounced Address",'
    b'"sg_event_id":"ZHJvcC0xMDk5NDkxOS1MUnpYbF9OSFN0T0doUTRrb2ZTbV9BLTA",'
    b'"sg_message_id":"LRzXl_NHStOGhQ4kofSm_A.filterdrecv-p3mdw1-756b745b58-kmzbl-18-5F5FC76C-9.0",'
    b'"smtp-id":"<LRzXl_NHStOGhQ4kofSm_A@ismtpd0039p1iad1.sendgrid.net>","timestamp":1600112492}]\r\n'
)
ADYEN_ITEM = {
    "pspReference": "7914073381342284",
    "originalReference": "",
    "merchantAccountCode": "TestMerchant",
    "merchantReference": "TestPayment-1407325143704",
    "amount": {"value": 1130, "currency": "EUR"},
    "eventCode": "AUTHORISATION",
    "success": "true",
    "additionalData": {"hmacSignature": "coqCmt/IZ4E3CzPvMY8zTjQVL5hYJUiBRg8UU+iCWo0="},
}
ADYEN_KEY = "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056"
ADYEN_EVENT = ("AUTHORISATION 7914073381342284 true", "AUTHORISATION", "TestMerchant")
DISCORD_KEY = "8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c"


def adyen(*items):
    return json.dumps({"notificationItems": [{"NotificationRequestItem": one} for one in items]}).encode()


# What the sender's own library signs or has in its tests: (verifier, headers, body, key of the first event, its kind, its source)
VECTORS = {
    "square 43, its tests": (
        webhooks.Square("Ibxx_5AKakO-3qeNVR61Dw", url="https://webhook.site/679a4f3a-dcfa-49ee-bac5-9d0edad886b9"),
        {"x-square-hmacsha256-signature": "GF4YkrJgGBDZ9NIYbNXBnMzqb2HoL4RW/S6vkZ9/2N4="},
        SQUARE,
        ("ac3ac95b-f97d-458c-a6e6-18981597e05f", "webhooks.test_notification", "MLEFBHHSJGVHD"),
    ),
    "twilio 9, RequestValidator": (
        webhooks.Twilio("12345", url="https://mycompany.com/myapp.php?foo=1&bar=2"),
        {"x-twilio-signature": "RSOYDt4T1cUTdK1PDd93/VVr8B8=", "i-twilio-idempotency-token": "5b1c9f2e"},
        TWILIO,
        ("5b1c9f2e", None, None),
    ),
    "sendgrid 6, its tests": (
        webhooks.SendGrid(
            "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE83T4O/n84iotIvIW4mdBgQ/7dAfSmpqIM8kF9mN1flpVKS3GRqe62gw+2fNNRaINXvVpiglSI8eNEc6wEA3F+g=="
        ),
        {
            "x-twilio-email-event-webhook-signature": "MEUCIGHQVtGj+Y3LkG9fLcxf3qfI10QysgDWmMOVmxG0u6ZUAiEAyBiXDWzM+uOe5W0JuG+luQAbPIqHh89M15TluLtEZtM=",
            "x-twilio-email-event-webhook-timestamp": "1600112502",
        },
        SENDGRID,
        ("ZHJvcC0xMDk5NDkxOS1MUnpYbF9OSFN0T0doUTRrb2ZTbV9BLTA", "dropped", None),
    ),
    "adyen 14, generate_notification_sig": (webhooks.Adyen(ADYEN_KEY), {}, adyen(ADYEN_ITEM), ADYEN_EVENT),
    "pynacl 1.6, as discord's documents sign": (
        webhooks.Discord(DISCORD_KEY, tolerance=EVER),
        {
            "x-signature-timestamp": "1700000000",
            "x-signature-ed25519": "13bf02353537e2e7db309d7410ac846c7eb293121ca4f84b79c1a49bdd3c3497227f94205bf1748ee38d3f70c7ca1ee10c05a6b6cdddd22c24a0c37f7fd5ee02",
        },
        b'{"id": "1", "type": 2}',
        ("1", "2", None),
    ),
}


def first(found):
    return found[0] if isinstance(found, list) else found


@each("name", VECTORS)
def test_what_a_senders_own_library_signs_is_taken_and_any_change_of_it_is_refused(name):
    verifier, headers, body, expected = VECTORS[name]
    event = first(verifier.verify(headers, body))
    assert (event.id, event.kind, event.source) == expected
    changed = body.replace(b"1", b"2", 1)
    assert changed != body
    proofs = [one for one in headers if "idempotency" not in one]
    others = [(headers, changed), *(({**headers, one: "1" + headers[one][1:-1] + "%"}, body) for one in proofs)]
    for other, sent in [*others, *([({}, body)] if proofs else [])]:
        with pytest.raises(webhooks.SignatureRefused):
            verifier.verify(other, sent)


def test_paddles_own_vector_is_taken_with_the_secret_that_signed_it():
    # tests/Unit/Notification/test_Verifier.py of paddle-python-sdk; its body is no JSON, so the signature is all that passes
    told = "ts=1696195954;h1=dummy;h1=d96299976a6eb066f484d7fde011ac56fc32b38fc9940bc419d6e537fdc6ef02"
    start = "pdl_ntf_01hbpjmytsa32fhr36nqgc3kgb_"
    other, right = start + "TjIG2BXbm83HPXqNfziwe506sBEdqL/4", start + "WvRO0eL4Bj9rgYYIBZY6wZhG4EHy9jzh"
    with pytest.raises(ValueError, match="no JSON"):
        webhooks.Paddle(other, right, tolerance=EVER).verify({"paddle-signature": told}, b"hello-world")
    for verifier in (webhooks.Paddle(other, tolerance=EVER), webhooks.Paddle(right)):
        with pytest.raises(webhooks.SignatureRefused):
            verifier.verify({"paddle-signature": told}, b"hello-world")


def test_paddle_and_lemon_squeezy_and_linear():
    now = int(time.time())
    body = b'{"event_id": "evt_1", "event_type": "transaction.paid"}'
    headers = {"paddle-signature": f"ts={now};h1={signed(body, before=f'{now}:'.encode())}"}
    assert webhooks.Paddle(SECRET).verify(headers, body)[:2] == ("evt_1", "transaction.paid")

    body = b'{"meta": {"event_name": "order_created"}, "data": {"id": "1"}}'
    event = webhooks.LemonSqueezy(SECRET).verify({"x-signature": signed(body)}, body)
    spaced = body.replace(b": ", b" : ")
    assert event.kind == "order_created"
    again = webhooks.LemonSqueezy(SECRET).verify({"x-signature": signed(spaced)}, spaced)
    assert again == event  # equal content, equal key
    other = body.replace(b'"1"', b'"2"')
    assert webhooks.LemonSqueezy(SECRET).verify({"x-signature": signed(other)}, other).id != event.id

    for at, is_new in ((now, True), (now - 400, False)):
        body = json.dumps({"type": "Issue", "webhookTimestamp": at * 1000 + 7, "organizationId": "o"}).encode()
        headers = {"linear-signature": signed(body), "linear-delivery": "d1"}
        if is_new:
            assert webhooks.Linear(SECRET).verify(headers, body)[::3] == ("d1", "o")
        else:
            with pytest.raises(webhooks.SignatureRefused):
                webhooks.Linear(SECRET).verify(headers, body)


def test_zoom_is_answered_when_it_tests_the_address():
    now = str(int(time.time()))

    def delivered(data):
        body = json.dumps(data).encode()
        headers = {"x-zm-signature": signed(body, "v0={}", f"v0:{now}:".encode()), "x-zm-request-timestamp": now}
        return webhooks.Zoom(SECRET).verify(headers, body)

    # developers.zoom.us, "Using webhooks", "Validate your webhook endpoint"
    answer = delivered({"event": "endpoint.url_validation", "payload": {"plainToken": "qgg8vlvZRS6UYooatFL8Aw"}})
    told = {"plainToken": "qgg8vlvZRS6UYooatFL8Aw", "encryptedToken": signed(b"qgg8vlvZRS6UYooatFL8Aw")}
    assert (answer.status, json.loads(answer.body)) == (200, told)
    started = {"event": "meeting.started", "event_ts": 1, "payload": {"account_id": "a"}}
    assert delivered(started)[1::2] == ("meeting.started", "a")
    assert delivered(started) == delivered(started)
    assert delivered(started).id != delivered({**started, "event_ts": 2}).id


def test_discords_ping_is_answered():
    headers = {
        "x-signature-timestamp": "1700000000",
        "x-signature-ed25519": "f537abe4f7c46973a97e3329de68fa078c3e75a89fc7dba93cbd9b47f900a8164bfd0f9cf10c854ad0dfd86d80da049f4da73ff28b14f5642b9c3ca4f7b19207",
    }
    verifier = webhooks.Discord(DISCORD_KEY, tolerance=EVER)
    assert verifier.verify(headers, b'{"id": "1", "type": 1}').body == b'{"type": 1}'
    with pytest.raises(webhooks.SignatureRefused, match="differs"):
        webhooks.Discord(DISCORD_KEY).verify(headers, b'{"id": "1", "type": 1}')


def test_gitlab_and_graph_compare_what_you_gave_them():
    headers = {"x-gitlab-token": SECRET, "idempotency-key": "k", "x-gitlab-event": "Push Hook"}
    assert webhooks.GitLab("new", SECRET).verify(headers, b"{}")[:2] == ("k", "Push Hook")
    with pytest.raises(webhooks.SignatureRefused):
        webhooks.GitLab("new").verify(headers, b"{}")
    with pytest.raises(ValueError, match="not UTF-8"):
        webhooks.GitLab(SECRET).verify(headers, b"\xff")
    one = {"subscriptionId": "s", "changeType": "created", "clientState": SECRET, "resourceData": {"id": "m1"}}
    both = json.dumps({"value": [one, {**one, "id": "n2"}]}).encode()
    events = webhooks.MicrosoftGraph(SECRET).verify({}, both)
    assert [event.kind for event in events] == ["created", "created"]
    assert events[1].id == "n2"
    assert events[0].id != webhooks.MicrosoftGraph(SECRET).verify({}, both)[0].id  # two changes can look the same
    forged = json.dumps({"value": [one, {**one, "clientState": "?"}]}).encode()
    empty = (b'{"value": [], "notificationItems": []}', b'{"value": 1}', b"{}", b"\xff", b"")
    ours = webhooks.MicrosoftGraph(SECRET), webhooks.Adyen(ADYEN_KEY)
    for verifier, body in ((ours[0], forged), (webhooks.MicrosoftGraph("new"), both), *itertools.product(ours, empty)):
        with pytest.raises(webhooks.SignatureRefused):
            verifier.verify({}, body)


def test_meta_delivers_several_events_and_each_has_its_key():
    change = {"field": "messages", "value": {"messages": [{"id": "wamid.1", "timestamp": "1"}]}}
    other = {"field": "messages", "value": {"statuses": [{"id": "wamid.1", "status": "read"}]}}

    def delivered(*changes):
        entry = {"id": "page", "time": 7, "changes": list(changes)}
        body = json.dumps({"object": "whatsapp_business_account", "entry": [entry]}).encode()
        return webhooks.Meta(SECRET).verify({"x-hub-signature-256": signed(body, "sha256={}")}, body)

    both = delivered(change, other)
    assert len({event.id for event in both}) == 2
    assert both[0] == delivered(change)[0]  # however Meta puts them together
    assert both[0].data == {"id": "page", "time": 7, "changes": [change]}


def test_a_colon_cannot_make_one_adyen_event_look_like_another():
    moved = {**ADYEN_ITEM, "merchantAccountCode": "TestMerchant:TestPayment-1407325143704", "merchantReference": "1130"}
    with pytest.raises(webhooks.SignatureRefused):
        webhooks.Adyen(ADYEN_KEY).verify({}, adyen(ADYEN_ITEM, moved))
    with pytest.raises(ValueError, match="hexadecimal"):
        webhooks.Adyen("no key")


def test_paypals_events_are_taken_by_certificate_and_webhook():
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "messageverificationcerts.paypal.com")])
    now = dt.datetime.now(dt.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + dt.timedelta(1))
    certificate = made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    body = b'{"id": "WH-1", "event_type": "PAYMENT.SALE.COMPLETED"}'
    # _get_expected_sig() of paypalrestsdk 1.13
    text = f"tid|2026-01-01T00:00:00Z|9XL90610J3647323C|{binascii.crc32(body)}".encode()
    headers = {
        "paypal-transmission-id": "tid",
        "paypal-transmission-time": "2026-01-01T00:00:00Z",
        "paypal-auth-algo": "SHA256withRSA",
        "paypal-cert-url": "https://api.sandbox.paypal.com/v1/notifications/certs/CERT-360caa42-fca2a594-a5cafa77",
        "paypal-transmission-sig": base64.b64encode(key.sign(text, padding.PKCS1v15(), hashes.SHA256())).decode(),
    }
    ours = webhooks.PayPal("another", "9XL90610J3647323C", fetch=lambda url: certificate)
    assert ours.verify(headers, body)[:2] == ("WH-1", "PAYMENT.SALE.COMPLETED")
    for verifier, changed, sent in [
        (ours, {}, body + b" "),
        (webhooks.PayPal("another", fetch=lambda url: certificate), {}, body),
        (ours, {"paypal-transmission-id": "t"}, body),
        (ours, {"paypal-auth-algo": "none"}, body),
        (ours, {"paypal-cert-url": "https://evil.example/v1/notifications/certs/CERT-1"}, body),
        (ours, {"paypal-cert-url": "https://api.paypal.com.evil.example/v1/notifications/certs/CERT-1"}, body),
    ]:
        with pytest.raises(webhooks.SignatureRefused):
            verifier.verify({**headers, **changed}, sent)


def test_cloudevents_binary_structured_and_batched_have_one_key():
    sent = {"authorization": "Bearer t1"}
    event = {"specversion": "1.0", "id": "1", "source": "/orders", "type": "paid", "data": {"n": 1}}
    binary = {**sent, "ce-id": "1", "ce-source": "/orders", "ce-type": "paid", "content-type": "application/json"}
    batch = {**sent, "content-type": "application/cloudevents-batch+json"}
    known = webhooks.WebhookEvent("/orders 1", "paid", {"n": 1}, "/orders")
    ours = webhooks.CloudEvents("t0", "t1")
    assert ours.verify(binary, b'{"n": 1}') == known
    structured = {**sent, "content-type": "application/cloudevents+json; charset=utf-8"}
    assert ours.verify(structured, json.dumps(event).encode()) == known
    assert ours.verify(batch, json.dumps([event, {**event, "id": "2"}]).encode())[0] == known
    image = {**binary, "content-type": "image/png", "ce-source": "/caf%C3%A9"}
    assert ours.verify(image, b"\x00")[2:] == (b"\x00", "/café")
    encoded = {**{name: event[name] for name in ("id", "source", "type")}, "data_base64": "AAE="}
    assert ours.verify(structured, json.dumps(encoded).encode()).data == b"\x00\x01"
    with pytest.raises(ValueError, match="white space"):  # else it has the key of the event "b 1" from "/a"
        ours.verify({**binary, "ce-source": "/a%20b"}, b"{}")
    for headers in ({**binary, "authorization": "Bearer no"}, {**binary, "authorization": "t1"}, {}):
        with pytest.raises(webhooks.SignatureRefused):
            ours.verify(headers, b'{"n": 1}')
    for headers, body in [(sent, b"{}"), (structured, b"[1]"), (batch, b"{}")]:
        with pytest.raises(ValueError, match=r"no |not a list|has no event"):
            ours.verify(headers, body)


def test_cloudevents_senders_ask_first():
    shake = webhooks.cloudevents_handshake("eventgrid.azure.net")
    asked = {"webhook-request-origin": "eventgrid.azure.net"}
    answer = shake(webhooks.WebhookRequest("OPTIONS", {}, asked, b""))
    assert ("WebHook-Allowed-Origin", "eventgrid.azure.net") in answer.headers
    assert shake(webhooks.WebhookRequest("OPTIONS", {}, {"webhook-request-origin": "evil"}, b"")).status == 403
    assert shake(webhooks.WebhookRequest("POST", {}, asked, b"")) is None


class Several:
    """A verifier of deliveries that name their events."""

    def verify(self, headers, body):
        return [webhooks.WebhookEvent(one, None, one) for one in body.decode().split()]


def test_all_events_of_a_delivery_are_handled_whatever_becomes_of_one():
    handled = []

    def handle(event):
        handled.append(event.id)
        if event.id == "bad" and handled.count("bad") == 1:
            raise RuntimeError("bad")

    once = Once("memory:")
    hook = webhooks.WebhookReceiver(once, Several(), handle, name="several")
    with pytest.raises(RuntimeError):
        hook.answer({}, b"a bad b")
    assert handled == ["a", "bad", "b"]
    held = once.acquire("held", name="several")
    assert hook.answer({}, b"a held bad c").status == 503
    assert handled == ["a", "bad", "b", "bad", "c"]
    held.release()
    assert hook.answer({}, b"a held bad c").status == 200
    assert handled == ["a", "bad", "b", "bad", "c", "held"]
    assert hook.answer({}, b"").status == 200


def test_a_sender_of_your_own_is_a_row():
    class Acme(webhooks.HmacSender):
        signature, at, signs, form = "x-acme-signature", "x-acme-time", "{at}.{body}", "{base64}"
        id, kind = ".event.id", "x-acme-event"

    body, now = b'{"event": {"id": "e1"}}', str(int(time.time()))
    mac = base64.b64encode(hmac.digest(SECRET.encode(), f"{now}.".encode() + body, "sha256")).decode()
    headers = {"x-acme-signature": mac, "x-acme-time": now, "x-acme-event": "paid"}
    assert Acme(SECRET).verify(headers, body)[:2] == ("e1", "paid")
    with pytest.raises(webhooks.SignatureRefused):
        Acme(SECRET).verify({**headers, "x-acme-time": str(int(now) + 1)}, body)
