"""Webhooks: only what the provider has signed is taken."""

import base64
import datetime as dt
import json
import subprocess

import pytest

from onceward.web.webhooks import (
    GitHub,
    Shopify,
    SignatureRefused,
    Slack,
    StandardWebhooks,
    Stripe,
    WebhookEvent,
)
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


@each("secret", [f"{SECRET}\n", f"v1,{SECRET}", [SECRET], ""])
@each("made", [GitHub, Stripe, StandardWebhooks, Slack, Shopify])
def test_a_secret_that_is_missing_or_was_pasted_wrongly_is_refused_with_what_to_do(made, secret):
    with pytest.raises((ValueError, TypeError), match=r"strip|from whsec_ on|as a text|secret") as refused:
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
