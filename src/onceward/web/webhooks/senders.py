"""Senders that share a secret with you. Each says where its signature is, what it signs, and what the event's key is."""

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from onceward.http.answer import Answer
from onceward.web.webhooks.events import (
    TEXT,
    SignatureRefused,
    Verified,
    WebhookEvent,
    objects_of,
    parse_object,
    text_of,
    text_or_none,
    unverified,
)
from onceward.web.webhooks.signatures import PREFIX, HmacSender, check, check_secrets, check_time, content_id, read


class StandardWebhooks(HmacSender):
    """Standard Webhooks: Svix, Clerk, Resend, OpenAI and others. The id and the time are signed.

    Rules: github.com/standard-webhooks/standard-webhooks, spec/standard-webhooks.md, "Signature scheme". The headers may have Svix'
    older names, ``svix-id`` and so on (docs.svix.com, "Verifying webhooks manually"). A secret is ``whsec_`` and base64.
    """

    prefixes, signature, at, id = ("webhook-", "svix-"), "*signature", "*timestamp", "*id"
    signs, form = "{id}.{at}.{body}", "{base64}"

    def key_of(self, secret: str) -> bytes:
        """Return the key of a secret."""
        return _decode(secret.removeprefix(PREFIX), f"{PREFIX} and base64", base64.b64decode, validate=True)

    def signatures_of(self, headers: Mapping[str, str]) -> tuple[list[str], str | None]:
        """Return the signatures. It skips signatures other than v1, which use a key pair or a later version."""
        (all_of_them,), at = super().signatures_of(headers)
        return [one[3:] for one in all_of_them.split() if one.startswith("v1,")], at


class Stripe(HmacSender):
    """Stripe: docs.stripe.com/webhooks, "Verify webhook signatures manually". The id is in the signed body."""

    signature, parts, signs = "stripe-signature", (",", "t", "v1"), "{at}.{body}"
    id, source = ".id", ".account"


class Paddle(HmacSender):
    """Paddle Billing: developer.paddle.com, "Verify webhook signatures". The id is in the signed body."""

    signature, parts, signs = "paddle-signature", (";", "ts", "h1"), "{at}:{body}"
    id, kind = ".event_id", ".event_type"


class GitHub(HmacSender):
    """GitHub: docs.github.com, "Validating webhook deliveries". The id is in a header, which is not signed."""

    signature, form = "x-hub-signature-256", "sha256={hex}"
    id, kind = "x-github-delivery", "x-github-event"


class Meta(HmacSender):
    """Facebook, Instagram, Messenger and WhatsApp: developers.facebook.com, "Webhooks", "Validate payloads".

    A delivery holds several events: each change and each message of an entry is one. They have no ids, so the key is a hash of the
    event with its entry's id and time. See also :func:`meta_handshake`.
    """

    signature, form = "x-hub-signature-256", "sha256={hex}"

    def event_of(self, headers: Mapping[str, str], data: dict[str, object]) -> Verified:
        """Return each event with the entry that it would have if Meta sent it alone."""
        kind = text_or_none(data.get("object"))
        events: list[WebhookEvent] = []
        for entry in objects_of(data, "entry"):
            about = {name: value for name, value in entry.items() if not isinstance(value, list)}
            parts = [(name, one) for name, value in entry.items() if isinstance(value, list) for one in value]
            for name, one in parts:
                alone = {**about, name: [one]}
                events.append(WebhookEvent(content_id(kind, alone), kind, alone, text_or_none(entry.get("id"))))
        return events


class Shopify(HmacSender):
    """Shopify: shopify.dev, "Verify webhook deliveries" and "Ignore duplicates". The ids are in headers, which are not signed.

    The secret is that of the app's client.
    """

    prefixes, signature, form = ("shopify-", "x-shopify-"), "*hmac-sha256", "{base64}"

    def event_of(self, headers: Mapping[str, str], data: dict[str, object]) -> Verified:
        """Return the event. Without an event id it has the id that all deliveries of this webhook have."""
        header = "*event-id" if headers.get("*event-id") else "*webhook-id"
        shop, topic, name = (text_of(headers, one) for one in ("*shop-domain", "*topic", header))
        return WebhookEvent(f"{shop} {topic} {name}", topic, data, shop)


class Slack(HmacSender):
    """Slack's Events API: docs.slack.dev, "Verifying requests from Slack". The id is in the signed body.

    It answers Slack's own test of the address with the challenge.
    """

    signature, at, signs, form = "x-slack-signature", "x-slack-request-timestamp", "v0:{at}:{body}", "v0={hex}"
    id, kind, source = ".event_id", ".event.type", ".team_id"

    def event_of(self, headers: Mapping[str, str], data: dict[str, object]) -> Verified:
        """Return the event, or the answer to Slack's test."""
        if data.get("type") == "url_verification":
            return Answer(200, TEXT, text_of(data, "challenge").encode())
        return super().event_of(headers, data)


class Zoom(HmacSender):
    """Zoom: developers.zoom.us, "Using webhooks". It answers Zoom's own test of the address.

    An event has no id, so the key is a hash of it with its time.
    """

    signature, at, signs, form = "x-zm-signature", "x-zm-request-timestamp", "v0:{at}:{body}", "v0={hex}"
    kind, source = ".event", ".payload.account_id"

    def event_of(self, headers: Mapping[str, str], data: dict[str, object]) -> Verified:
        """Return the event, or the answer to Zoom's test."""
        if data.get("event") != "endpoint.url_validation":
            return super().event_of(headers, data)
        token = read(headers, data, ".payload.plainToken") or ""
        reply = {"plainToken": token, "encryptedToken": hmac.digest(self.keys[0], token.encode(), "sha256").hex()}
        return Answer(200, [("Content-Type", "application/json")], msgspec.json.encode(reply))


class Linear(HmacSender):
    """Linear: linear.app/developers/webhooks, "Securing webhooks". The time is in the signed body.

    The id is in a header, which is not signed.
    """

    signature, id, source = "linear-signature", "linear-delivery", ".organizationId"

    def event_of(self, headers: Mapping[str, str], data: dict[str, object]) -> Verified:
        """Return the event; raises SignatureRefused if it is too old."""
        at = data.get("webhookTimestamp")  # milliseconds
        check_time(str(at)[:-3] if type(at) is int else "", self.tolerance)
        return super().event_of(headers, data)


class LemonSqueezy(HmacSender):
    """Lemon Squeezy: docs.lemonsqueezy.com, "Signing requests". An event has no id, so the key is a hash of it."""

    signature, kind = "x-signature", ".meta.event_name"


class Square(HmacSender):
    """Square: developer.squareup.com, "Validate a webhook notification". The id is in the signed body.

    Args:
        secret: the subscription's signature key; several while you change it.
        url: the address as you gave it to Square. Square signs it, too.
    """

    signature, signs, form = "x-square-hmacsha256-signature", "{url}{body}", "{base64}"
    id, source = ".event_id", ".merchant_id"

    def __init__(self, *secret: str, url: str) -> None:
        super().__init__(*secret)
        self.url = _address(url)


class Twilio:
    """Twilio: twilio.com/docs/usage/security, "Validating signatures". The id is in a header, which is not signed.

    A delivery is a form; ``data`` has its fields. Twilio's deliveries in JSON are refused.

    Args:
        token: the account's auth token, or a shared key's secret; several while you change it.
        url: the address as Twilio calls it, with its query: Twilio signs it, too.
    """

    def __init__(self, *token: str, url: str) -> None:
        self._keys = [one.encode() for one in check_secrets(token)]
        self._url = _address(url)

    def verify(self, headers: Mapping[str, str], body: bytes) -> Verified:
        """See :class:`WebhookVerifier`."""
        try:
            fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=1000)
        except ValueError as error:
            raise SignatureRefused("the request's body is not a form") from error
        signed = self._url + "".join(name + value for name, value in sorted(set(fields)))
        form = (
            "sha256" if "algorithm=HMAC_SHA256" in headers.get("x-twilio-webhooks-signature-settings", "") else "sha1"
        )
        right = [base64.b64encode(hmac.digest(key, signed.encode(), form)).decode() for key in self._keys]
        check([headers.get("x-twilio-signature", "")], right)
        data = dict(fields)
        account = text_or_none(data.get("AccountSid"))
        return WebhookEvent(text_of(headers, "i-twilio-idempotency-token"), data.get("EventType"), data, account)


class GitLab:
    """GitLab 17.4 and later: docs.gitlab.com, "Webhooks", "Delivery headers". A delivery has your token, and is not signed.

    Args:
        token: the webhook's secret token; several while you change it.
    """

    def __init__(self, *token: str) -> None:
        self._tokens = check_secrets(token)

    def verify(self, headers: Mapping[str, str], body: bytes) -> Verified:
        """See :class:`WebhookVerifier`."""
        check([headers.get("x-gitlab-token", "")], self._tokens)
        data = parse_object(body)
        source = text_or_none(headers.get("x-gitlab-instance"))
        return WebhookEvent(text_of(headers, "idempotency-key"), headers.get("x-gitlab-event"), data, source)


class MicrosoftGraph:
    """Microsoft Graph: learn.microsoft.com, "Receive change notifications through webhooks". A notification has your ``clientState``.

    A delivery holds several events. Use it with :func:`graph_handshake`. Notifications of OneDrive and SharePoint have no id and no time, and
    two changes look the same. Each of them gets a new key, so one that is delivered twice is handled twice.

    Args:
        client_state: what you gave with the subscriptions; several while you change it.
    """

    def __init__(self, *client_state: str) -> None:
        self._states = check_secrets(client_state)

    def verify(self, headers: Mapping[str, str], body: bytes) -> Verified:
        """See :class:`WebhookVerifier`."""
        notifications = unverified(lambda: objects_of(parse_object(body), "value"))
        for one in notifications:
            check([str(one.get("clientState", ""))], self._states)
        return [
            WebhookEvent(
                text_or_none(one.get("id")) or os.urandom(16).hex(),
                text_or_none(one.get("changeType")) or text_or_none(one.get("lifecycleEvent")),
                one,
                text_or_none(one.get("subscriptionId")),
            )
            for one in notifications
        ]


class Adyen:
    """Adyen's standard webhooks: docs.adyen.com, "Verify HMAC signatures" and "Handle duplicates". Each event is signed.

    A delivery holds several events. The key is the event's code, its PSP reference, and whether it was a success.

    Args:
        secret: the webhook's HMAC key, in hexadecimal; several while you change it.
    """

    _SIGNED: Final = ("pspReference", "originalReference", "merchantAccountCode", "merchantReference")

    def __init__(self, *secret: str) -> None:
        self._keys = [_decode(one, "hexadecimal", binascii.a2b_hex) for one in check_secrets(secret)]

    def verify(self, headers: Mapping[str, str], body: bytes) -> Verified:
        """See :class:`WebhookVerifier`."""
        delivered = unverified(lambda: objects_of(parse_object(body), "notificationItems"))
        items = [_inner(one, "NotificationRequestItem") for one in delivered]
        for item in items:
            amount = _inner(item, "amount")
            parts = {name: str(item.get(name, "")) for name in self._SIGNED}
            parts |= {name: str(amount.get(name, "")) for name in ("value", "currency")}
            parts |= {name: str(item.get(name, "")) for name in ("eventCode", "success")}
            # Colons divide what is signed. In two fields, they could make one event look like another.
            if any(":" in text for name, text in parts.items() if name != "merchantReference"):
                raise SignatureRefused("a signed field has a colon")
            signed = ":".join(parts.values()).encode()
            right = [base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in self._keys]
            check([str(_inner(item, "additionalData").get("hmacSignature", ""))], right)
        return [
            WebhookEvent(
                f"{text_of(item, 'eventCode')} {text_of(item, 'pspReference')} {item.get('success')}",
                text_or_none(item.get("eventCode")),
                item,
                text_or_none(item.get("merchantAccountCode")),
            )
            for item in items
        ]


def _inner(data: Mapping[str, object], name: str) -> dict[str, Any]:
    value = data.get(name)
    return value if isinstance(value, dict) else {}


def _decode(secret: str, form: str, decode: Callable[..., bytes], **options: bool) -> bytes:
    try:
        key = decode(secret, **options)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"the secret is not {form}, as the sender shows it") from error
    if not key:
        raise ValueError("a secret is missing or empty: anybody could sign with it")
    return key


def _address(url: str) -> str:
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"url={url!r}: give the whole address, as you gave it to the sender")
    return url
