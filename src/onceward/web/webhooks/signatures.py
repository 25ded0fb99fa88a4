"""The signatures of providers that share a secret with you: HMAC over the body, mostly with the time.

The providers' own libraries check the same few lines, and most bring a client of all their services along. The tests compare with them.
"""

import base64
import binascii
import hashlib
import hmac
import re
import time
from collections.abc import Mapping, Sequence
from typing import Final

from onceward.core.arguments import check_type
from onceward.web.webhooks.events import SignatureRefused, WebhookEvent, parsed, text_of, text_or_none

TOLERANCE: Final = 300.0  # seconds: what Standard Webhooks, Stripe and Slack advise
_SECONDS: Final = re.compile(r"[0-9]{1,12}")
_PREFIX: Final = "whsec_"


class StandardWebhooks:
    """Standard Webhooks: Svix, OpenAI, Clerk, Resend and others.

    Rules: github.com/standard-webhooks/standard-webhooks, spec/standard-webhooks.md, "Signature scheme". The id and the time are signed.
    The headers may have Svix' older names, ``svix-id`` and so on (docs.svix.com, "Verifying webhooks manually").

    Args:
        secret: ``whsec_`` and base64; several while you change it.
        tolerance: how many seconds old, or ahead, a delivery may be.

    Raises:
        ValueError: a secret is not valid.
    """

    def __init__(self, *secret: str, tolerance: float = TOLERANCE) -> None:
        self._secrets = [_decoded(one) for one in _given(secret)]
        self._tolerance = tolerance

    def verify(self, headers: Mapping[str, str], body: bytes) -> WebhookEvent:
        """See :class:`WebhookVerifier`."""
        names = _names(headers, "signature", "webhook-", "svix-")
        key, at = headers.get(f"{names}id", ""), headers.get(f"{names}timestamp", "")
        _check_time(at, self._tolerance)
        signed = f"{key}.{at}.".encode() + body
        # Others than v1 are signatures with a key pair, or of a later version.
        sent = [one[3:] for one in headers.get(f"{names}signature", "").split() if one.startswith("v1,")]
        _check(sent, [base64.b64encode(_sha256(secret, signed)).decode() for secret in self._secrets])
        data = parsed(body)
        return WebhookEvent(text_of(headers, f"{names}id"), text_or_none(data.get("type")), data)


class Stripe:
    """Stripe: docs.stripe.com/webhooks, "Verify webhook signatures manually". The id is in the signed body.

    Args:
        secret: the endpoint's, ``whsec_...``; several while you roll it.
        tolerance: as for :class:`StandardWebhooks`.
    """

    def __init__(self, *secret: str, tolerance: float = TOLERANCE) -> None:
        self._secrets = [one.encode() for one in _given(secret)]
        self._tolerance = tolerance

    def verify(self, headers: Mapping[str, str], body: bytes) -> WebhookEvent:
        """See :class:`WebhookVerifier`."""
        parts = [one.strip().partition("=") for one in headers.get("stripe-signature", "").split(",")]
        at = next((value for name, _, value in parts if name == "t"), "")
        _check_time(at, self._tolerance)
        signed = at.encode() + b"." + body
        _check(
            [value for name, _, value in parts if name == "v1"],
            [_sha256(secret, signed).hex() for secret in self._secrets],
        )
        data = parsed(body)
        return WebhookEvent(
            text_of(data, "id"), text_or_none(data.get("type")), data, text_or_none(data.get("account"))
        )


class GitHub:
    """GitHub: docs.github.com, "Validating webhook deliveries". The id is in a header, which is not signed.

    Args:
        secret: the webhook's; several while you change it.
    """

    def __init__(self, *secret: str) -> None:
        self._secrets = [one.encode() for one in _given(secret)]

    def verify(self, headers: Mapping[str, str], body: bytes) -> WebhookEvent:
        """See :class:`WebhookVerifier`."""
        sent = headers.get("x-hub-signature-256", "")
        _check([sent], [f"sha256={_sha256(secret, body).hex()}" for secret in self._secrets])
        return WebhookEvent(text_of(headers, "x-github-delivery"), headers.get("x-github-event"), parsed(body))


class Shopify:
    """Shopify: shopify.dev, "Verify webhook deliveries" and "Ignore duplicates". The ids are in headers, which are not signed.

    Args:
        secret: the app's client secret; several while you rotate it.
    """

    def __init__(self, *secret: str) -> None:
        self._secrets = [one.encode() for one in _given(secret)]

    def verify(self, headers: Mapping[str, str], body: bytes) -> WebhookEvent:
        """See :class:`WebhookVerifier`."""
        names = _names(headers, "hmac-sha256", "shopify-", "x-shopify-")
        sent = headers.get(f"{names}hmac-sha256", "")
        _check([sent], [base64.b64encode(_sha256(secret, body)).decode() for secret in self._secrets])
        shop, topic = text_of(headers, f"{names}shop-domain"), text_of(headers, f"{names}topic")
        # A delivery without an event id has the id that all deliveries of this webhook have.
        named = "event-id" if headers.get(f"{names}event-id") else "webhook-id"
        key = f"{shop} {topic} {text_of(headers, names + named)}"
        return WebhookEvent(key, topic, parsed(body), shop)


class Slack:
    """Slack's Events API: docs.slack.dev, "Verifying requests from Slack". The id is in the signed body.

    Args:
        secret: the app's signing secret.
        tolerance: as for :class:`StandardWebhooks`.
    """

    def __init__(self, *secret: str, tolerance: float = TOLERANCE) -> None:
        self._secrets = [one.encode() for one in _given(secret)]
        self._tolerance = tolerance

    def verify(self, headers: Mapping[str, str], body: bytes) -> WebhookEvent:
        """See :class:`WebhookVerifier`. Slack's own test of the address has no id, and its challenge is the answer."""
        at = headers.get("x-slack-request-timestamp", "")
        _check_time(at, self._tolerance)
        signed = b"v0:" + at.encode() + b":" + body
        sent = headers.get("x-slack-signature", "")
        _check([sent], [f"v0={_sha256(secret, signed).hex()}" for secret in self._secrets])
        data = parsed(body)
        if data.get("type") == "url_verification":
            return WebhookEvent("", "url_verification", data)
        inner = data.get("event")
        kind = inner.get("type") if isinstance(inner, dict) else data.get("type")
        return WebhookEvent(text_of(data, "event_id"), text_or_none(kind), data, text_or_none(data.get("team_id")))


def _given(secrets: Sequence[str]) -> Sequence[str]:
    if not secrets or not all(secrets):
        raise ValueError("a secret is missing or empty: anybody could sign with it")
    for secret in secrets:
        check_type("a secret", secret, str, "each as a text: Stripe(first, second)")
        if secret != secret.strip() or len(secret.splitlines()) > 1:
            raise ValueError("a secret has a space or a line break at its end: take it out, such as by .strip()")
        if secret.startswith("v1,"):
            raise ValueError(f"a secret begins with v1, which is no part of it: give it from {_PREFIX} on")
    return secrets


def _names(headers: Mapping[str, str], signature: str, *prefixes: str) -> str:
    """Return what the names of a delivery's headers begin with: that of the first signature. Two sets are never mixed."""
    return next((prefix for prefix in prefixes if f"{prefix}{signature}" in headers), prefixes[0])


def _decoded(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError(f"the secret is not {_PREFIX} and base64, as the provider shows it") from error
    if not key:
        raise ValueError("a secret is missing or empty: anybody could sign with it")
    return key


def _sha256(secret: bytes, signed: bytes) -> bytes:
    return hmac.digest(secret, signed, hashlib.sha256)


def _check(sent: Sequence[str], right: Sequence[str]) -> None:
    """Raise SignatureRefused if none of the signatures is right. The time that it takes does not tell how far one is right."""
    # All are compared, always.
    equal = [hmac.compare_digest(one.encode(), other.encode()) for one in sent for other in right]
    if not any(equal):
        raise SignatureRefused("its signature is missing or wrong")


def _check_time(at: str, tolerance: float) -> None:
    if not _SECONDS.fullmatch(at):
        raise SignatureRefused("the time of its signature is missing or wrong")
    if not abs(time.time() - int(at)) <= tolerance:
        raise SignatureRefused(f"it was signed more than {tolerance:g} s ago, or ahead, by this machine's clock")
