"""Senders that sign with a key pair: Amazon SNS, PayPal, SendGrid and Discord. They need ``cryptography``."""

import base64
import binascii
import re
import ssl
import threading
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import HTTPException
from typing import TYPE_CHECKING, Final
from urllib.error import HTTPError

from onceward.http.answer import Answer
from onceward.web.webhooks.events import (
    TEXT,
    SignatureRefused,
    Verified,
    WebhookEvent,
    json_of,
    parse_object,
    text_of,
    text_or_none,
    unverified,
)
from onceward.web.webhooks.signatures import TOLERANCE, check_time, content_id, read

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.hashes import HashAlgorithm

_NOTIFICATION: Final = ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type")
_CONFIRMATION: Final = ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")
# By the name of a region: sns.s3.amazonaws.com is anybody's bucket that is called sns.
_HOST: Final = r"https://sns\.[a-z]+(?:-[a-z]+)+-[0-9]+\.amazonaws\.com(?:\.cn)?/"
_SUBSCRIBE: Final = re.compile(_HOST + r"\S*").fullmatch
_MOST: Final = 20  # certificates that are remembered
_WITHIN: Final = 5.0  # seconds to fetch one
_LARGEST: Final = 65_536  # bytes of one


def download(url: str) -> bytes:
    """Return what is at an address of the sender, such as its certificate."""
    with urllib.request.urlopen(url, timeout=_WITHIN, context=ssl.create_default_context()) as answer:  # noqa: S310 - https, checked
        data: bytes = answer.read(_LARGEST)
    return data


class Certificates:
    """The certificates of a sender, which must come from the sender itself: whoever signs could name any address.

    Args:
        addresses: matches the sender's own addresses of certificates.
        whose: the sender, for errors.
        fetch: returns the certificate at an address.
    """

    def __init__(self, addresses: str, whose: str, fetch: Callable[[str], bytes]) -> None:
        self._addresses = re.compile(addresses)
        self._whose, self._fetch = whose, fetch
        self._keys: dict[str, RSAPublicKey] = {}
        self._turn = threading.Lock()  # forged messages name many addresses: one fetch at a time

    def check(self, url: str, signature: str, digest: "HashAlgorithm", *signed: bytes) -> None:
        """Raise SignatureRefused if the certificate at an address has signed none of these, ConnectionError if it cannot be fetched now."""
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15

        key = self._key(url)
        _check(lambda text: key.verify(base64.b64decode(signature, validate=True), text, PKCS1v15(), digest), *signed)

    def _key(self, url: str) -> "RSAPublicKey":
        if not self._addresses.fullmatch(url):
            raise SignatureRefused(f"its certificate is not at an address of {self._whose}")
        if (key := self._keys.get(url)) is not None:
            return key
        if not self._turn.acquire(timeout=_WITHIN):
            raise ConnectionError("its certificate was not fetched, because other fetches did not end in time")
        try:
            return self._keys.get(url) or self._read(url)
        finally:
            self._turn.release()

    def _read(self, url: str) -> "RSAPublicKey":
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import rsa

        try:
            key = x509.load_pem_x509_certificate(self._fetch(url)).public_key()
        except (OSError, HTTPException) as error:
            why = f"its certificate could not be fetched: {error}"
            if isinstance(error, HTTPError) and error.code < 500:  # there is none
                raise SignatureRefused(why) from error
            raise ConnectionError(why) from error
        except ValueError as error:
            raise SignatureRefused(f"its certificate cannot be read: {error}") from error
        if not isinstance(key, rsa.RSAPublicKey):
            raise SignatureRefused("its certificate has no RSA key")
        if len(self._keys) >= _MOST:
            self._keys.clear()
        self._keys[url] = key
        return key


class Sns:
    """SNS topics that deliver over HTTPS: SNS Developer Guide, "Verifying the signatures of Amazon SNS messages".

    A confirmation of a subscription is an event of the kind "SubscriptionConfirmation": fetch its ``SubscribeURL`` to agree, or let
    ``confirm`` do it.
    Use ``SignatureVersion`` 2 of the topic where you can: version 1 is made with SHA-1.

    Args:
        topics: the ARNs of the topics. They are needed because every AWS account can send messages that SNS signs.
        confirm: whether to agree to subscriptions of these topics at once. Confirmations are then not events.
        fetch: a callable that returns the bytes at an address of SNS; by default over HTTPS.

    Raises:
        ValueError, TypeError: no topic is given, or a topic is not an ARN.
    """

    def __init__(self, *topics: str, confirm: bool = False, fetch: Callable[[str], bytes] = download) -> None:
        self._confirms, self._fetch = confirm, fetch
        if not topics or not all(one.startswith("arn:") for one in topics):
            raise ValueError("give the ARNs of the topics: other accounts' messages are signed by SNS, too")
        self._topics = frozenset(topics)
        self._certificates = Certificates(_HOST + r"SimpleNotificationService-[A-Za-z0-9]+\.pem", "SNS", fetch)

    def verify(self, headers: Mapping[str, str], body: bytes) -> Verified:
        """See :class:`onceward.web.webhooks.WebhookVerifier`."""
        from cryptography.hazmat.primitives.hashes import SHA1, SHA256

        del headers  # SNS signs the body only, and all is in it
        data = unverified(lambda: parse_object(body))
        topic = data.get("TopicArn")
        if not isinstance(topic, str) or topic not in self._topics:
            raise SignatureRefused(f"it is of the topic {topic!r}, which is not among those of this receiver")
        names = _NOTIFICATION if data.get("Type") == "Notification" else _CONFIRMATION
        lines = [
            f"{name}\n{_single_line(data, name)}\n" for name in names if name != "Subject" or data.get(name) is not None
        ]
        digest = {"1": SHA1, "2": SHA256}.get(str(data.get("SignatureVersion")))
        if digest is None:
            raise SignatureRefused(f"its SignatureVersion is {data.get('SignatureVersion')!r}: only 1 and 2 are known")
        self._certificates.check(
            str(data.get("SigningCertURL")), str(data.get("Signature")), digest(), "".join(lines).encode()
        )
        if self._confirms and data.get("Type") == "SubscriptionConfirmation":
            return self._confirm(text_of(data, "SubscribeURL"))
        return WebhookEvent(text_of(data, "MessageId"), text_or_none(data.get("Type")), data, topic)

    def _confirm(self, url: str) -> Answer:
        if not _SUBSCRIBE(url):
            raise ValueError("its SubscribeURL is not at an address of SNS")
        try:
            self._fetch(url)
        except (OSError, HTTPException):  # SNS delivers it again
            return Answer(503, TEXT, b"the subscription could not be confirmed now")
        return Answer(200, [], b"")


class PayPal:
    """PayPal: developer.paypal.com, "Verify webhook signature", "Self verification method". The id is in the signed body.

    Args:
        webhook_id: the webhook's id. PayPal signs it, too. Give several while you change it.
        fetch: as for :class:`Sns`.

    Raises:
        ValueError, TypeError: no id is given.
    """

    def __init__(self, *webhook_id: str, fetch: Callable[[str], bytes] = download) -> None:
        if not webhook_id or not all(webhook_id):
            raise ValueError("give the webhook's id: PayPal signs the events of other webhooks, too")
        self._ids = webhook_id
        self._certificates = Certificates(
            r"https://api(?:-m)?(?:\.sandbox)?\.paypal\.com/v1/notifications/certs/[A-Za-z0-9_-]+", "PayPal", fetch
        )

    def verify(self, headers: Mapping[str, str], body: bytes) -> Verified:
        """See :class:`onceward.web.webhooks.WebhookVerifier`."""
        from cryptography.hazmat.primitives.hashes import SHA256

        name, at = headers.get("paypal-transmission-id", ""), headers.get("paypal-transmission-time", "")
        if headers.get("paypal-auth-algo") != "SHA256withRSA":
            raise SignatureRefused("it is not signed with SHA256withRSA")
        signature, url = headers.get("paypal-transmission-sig", ""), headers.get("paypal-cert-url", "")
        crc = binascii.crc32(body)
        self._certificates.check(url, signature, SHA256(), *(f"{name}|{at}|{one}|{crc}".encode() for one in self._ids))
        data = parse_object(body)
        return WebhookEvent(text_of(data, "id"), text_or_none(data.get("event_type")), data)


class SendGrid:
    """SendGrid: twilio.com/docs/sendgrid, "Getting started with the Event Webhook security features". A delivery holds several events.

    Args:
        public_key: as SendGrid shows it: base64, without the lines around it.

    Raises:
        ValueError, TypeError: it is not such a key.
    """

    def __init__(self, public_key: str) -> None:
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
        from cryptography.hazmat.primitives.serialization import load_der_public_key

        key = load_der_public_key(base64.b64decode(public_key, validate=True))
        if not isinstance(key, EllipticCurvePublicKey):
            raise ValueError("public_key: give SendGrid's, which is for elliptic curves")
        self._key = key

    def verify(self, headers: Mapping[str, str], body: bytes) -> Verified:
        """See :class:`onceward.web.webhooks.WebhookVerifier`."""
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256

        signature, at = (headers.get(f"x-twilio-email-event-webhook-{name}", "") for name in ("signature", "timestamp"))
        _check(
            lambda text: self._key.verify(base64.b64decode(signature, validate=True), text, ECDSA(SHA256())),
            at.encode() + body,
        )
        events = json_of(body)
        if not isinstance(events, list) or not all(isinstance(one, dict) for one in events):
            raise ValueError("the body is not a list of events")
        return [WebhookEvent(text_of(one, "sg_event_id"), text_or_none(one.get("event")), one) for one in events]


class Discord:
    """Discord: discord.com/developers, "Interactions" and "Webhook events", "Validating security request headers".

    It answers Discord's pings. The id of an interaction is in the signed body. A webhook event has no id, so its key is
    a hash of it with its time.

    Args:
        public_key: the application's public key, in hexadecimal.
        tolerance: how many seconds old, or ahead, a delivery may be.

    Raises:
        ValueError, TypeError: it is not such a key.
    """

    def __init__(self, public_key: str, *, tolerance: float = TOLERANCE) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        self._key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
        self._tolerance = tolerance

    def verify(self, headers: Mapping[str, str], body: bytes) -> Verified:
        """See :class:`onceward.web.webhooks.WebhookVerifier`."""
        signature, at = (headers.get(f"x-signature-{name}", "") for name in ("ed25519", "timestamp"))
        check_time(at, self._tolerance)
        _check(lambda text: self._key.verify(bytes.fromhex(signature), text), at.encode() + body)
        data = parse_object(body)
        is_interaction, kind = "id" in data, data.get("type")
        if is_interaction and kind == 1:
            return Answer(200, [("Content-Type", "application/json")], b'{"type": 1}')
        if not is_interaction and kind == 0:
            return Answer(204, [], b"")
        application = read(headers, data, ".application_id")
        if is_interaction:
            return WebhookEvent(text_of(data, "id"), str(kind), data, application)
        return WebhookEvent(content_id(data), read(headers, data, ".event.type"), data, application)


def _check(verify: Callable[[bytes], object], *signed: bytes) -> None:
    """Raise SignatureRefused if a delivery has the signature of none of these."""
    from cryptography.exceptions import InvalidSignature

    for text in signed:
        with suppress(InvalidSignature, ValueError):
            verify(text)
            break
    else:
        raise SignatureRefused("its signature is missing or wrong")


def _single_line(data: Mapping[str, object], name: str) -> str:
    """Return a signed text. What is signed are lines, so a line break in another field could make one message look like another."""
    text = data.get(name)
    if not isinstance(text, str) or ("\n" in text and name != "Message"):
        raise SignatureRefused(f"its {name} is missing, or is not a single line")
    return text
