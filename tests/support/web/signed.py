"""Deliveries of webhooks as the providers' own libraries sign them."""

import base64
import datetime as dt

import slack_sdk.signature
import standardwebhooks
import stripe
import svix.webhooks

SECRET = "whsec_" + base64.b64encode(b"a secret of 24 bytes, or").decode()
BODY = b'{"type": "paid", "id": "evt_1"}'


def now():
    return dt.datetime.now(dt.UTC)


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
