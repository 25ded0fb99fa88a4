"""Amazon SNS over HTTPS, which signs with a key pair. It needs ``cryptography``."""

import base64
import re
import ssl
import threading
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import TYPE_CHECKING, Final
from urllib.error import HTTPError

from onceward.core.arguments import check_type
from onceward.http.answer import Answer
from onceward.web.webhooks.events import SignatureRefused, Verified, WebhookEvent, parsed, text_of, text_or_none

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

_NOTIFICATION: Final = ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type")
_CONFIRMATION: Final = ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")
# A certificate must come from SNS itself: whoever signs could name any address.
_CERTIFICATE: Final = re.compile(
    r"https://sns\.[a-z0-9-]+\.amazonaws\.com(?:\.cn)?/SimpleNotificationService-[A-Za-z0-9]+\.pem"
).fullmatch
_SUBSCRIBE: Final = re.compile(r"https://sns\.[a-z0-9-]+\.amazonaws\.com(?:\.cn)?/\S*").fullmatch
_MOST: Final = 20  # certificates that are remembered
_WITHIN: Final = 5.0  # seconds to fetch one
_LARGEST: Final = 65_536  # bytes of one


def fetched(url: str) -> bytes:
    """Return what is at an address of the sender, such as its certificate."""
    with urllib.request.urlopen(url, timeout=_WITHIN, context=ssl.create_default_context()) as answer:  # noqa: S310 - https, checked
        data: bytes = answer.read(_LARGEST)
    return data


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

    def __init__(self, *topics: str, confirm: bool = False, fetch: Callable[[str], bytes] = fetched) -> None:
        self._confirms, self._fetch = confirm, fetch
        for one in topics:
            check_type("Sns(topics)", one, str, 'each ARN as a text: Sns("arn:aws:sns:eu-west-1:111111111111:orders")')
        if not topics or not all(one.startswith("arn:") for one in topics):
            raise ValueError("give the ARNs of the topics: other accounts' messages are signed by SNS, too")
        self._topics = frozenset(topics)
        self._known: dict[str, RSAPublicKey] = {}
        self._turn = threading.Lock()  # forged messages name many addresses: one fetch at a time

    def verify(self, headers: Mapping[str, str], body: bytes) -> Verified:
        """See :class:`onceward.web.webhooks.WebhookVerifier`."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
        from cryptography.hazmat.primitives.hashes import SHA1, SHA256

        del headers  # SNS signs the body only, and all is in it
        try:
            data = parsed(body)
        except ValueError as error:
            raise SignatureRefused(str(error)) from error
        topic = data.get("TopicArn")
        if not isinstance(topic, str) or topic not in self._topics:
            raise SignatureRefused(f"it is of the topic {topic!r}, which is not among those of this receiver")
        names = _NOTIFICATION if data.get("Type") == "Notification" else _CONFIRMATION
        lines = [
            f"{name}\n{_signed(data, name)}\n" for name in names if name != "Subject" or data.get(name) is not None
        ]
        digest = {"1": SHA1, "2": SHA256}.get(str(data.get("SignatureVersion")))
        if digest is None:
            raise SignatureRefused(f"its SignatureVersion is {data.get('SignatureVersion')!r}: only 1 and 2 are known")
        key = self._key(str(data.get("SigningCertURL")))
        try:
            signature = base64.b64decode(str(data.get("Signature")), validate=True)
            key.verify(signature, "".join(lines).encode(), PKCS1v15(), digest())
        except (InvalidSignature, ValueError) as error:
            raise SignatureRefused("its signature is missing or wrong") from error
        if self._confirms and data.get("Type") == "SubscriptionConfirmation":
            return self._confirmed(text_of(data, "SubscribeURL"))
        return WebhookEvent(text_of(data, "MessageId"), text_or_none(data.get("Type")), data, topic)

    def _key(self, url: str) -> "RSAPublicKey":
        """Return the key at an address. Raises SignatureRefused if none is there, ConnectionError if it cannot be fetched now."""
        if not _CERTIFICATE(url):
            raise SignatureRefused("its certificate is not at an address of SNS")
        if (known := self._known.get(url)) is not None:
            return known
        if not self._turn.acquire(timeout=_WITHIN):
            raise ConnectionError("its certificate was not fetched, because other fetches did not end in time")
        try:
            return self._known.get(url) or self._read(url)
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
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[url] = key
        return key

    def _confirmed(self, url: str) -> Answer:
        if not _SUBSCRIBE(url):
            raise ValueError("its SubscribeURL is not at an address of SNS")
        try:
            self._fetch(url)
        except (OSError, HTTPException):  # SNS delivers it again
            return Answer(503, [("Content-Type", "text/plain")], b"the subscription could not be confirmed now")
        return Answer(200, [], b"")


def _signed(data: Mapping[str, object], name: str) -> str:
    """Return a signed text. What is signed are lines, so a line break in another field could make one message look like another."""
    text = data.get(name)
    if not isinstance(text, str) or ("\n" in text and name != "Message"):
        raise SignatureRefused(f"its {name} is missing, or is not a single line")
    return text
