"""Amazon SNS over HTTPS: messages that SNS signs with a certificate.

Rules: SNS Developer Guide, "Verifying the signatures of Amazon SNS messages".
"""

import base64
import re
import ssl
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import TYPE_CHECKING, Final

from onceward.core.arguments import check_type
from onceward.web.webhooks.events import SignatureRefused, WebhookEvent, parsed, text_of, text_or_none

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

# The certificate must come from SNS itself: whoever signs could name any address.
_FROM_SNS: Final = re.compile(
    r"https://sns\.[a-z0-9-]+\.amazonaws\.com(?:\.cn)?/SimpleNotificationService-[A-Za-z0-9]+\.pem"
)
_NOTIFICATION: Final = ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type")
_CONFIRMATION: Final = ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")
_MOST: Final = 20  # certificates that are remembered
_WITHIN: Final = 5.0  # seconds to fetch one
_LARGEST: Final = 65_536  # bytes of one


def fetched(url: str) -> bytes:
    """Return the certificate at an address of SNS."""
    with urllib.request.urlopen(url, timeout=_WITHIN, context=ssl.create_default_context()) as answer:  # noqa: S310 - https, checked
        data: bytes = answer.read(_LARGEST)
    return data


class Sns:
    """SNS topics that deliver over HTTPS. It needs ``cryptography``.

    A confirmation of a subscription is an event of the kind "SubscriptionConfirmation": fetch its ``SubscribeURL`` to agree.
    Use ``SignatureVersion`` 2 of the topic where you can: version 1 is made with SHA-1.

    Args:
        topics: the ARNs of the topics; every AWS account can have SNS sign messages of its own.
        fetch: returns the certificate at an address; the default fetches it over HTTPS.

    Raises:
        ValueError, TypeError: no topic is given, or what is no ARN.
    """

    def __init__(self, *topics: str, fetch: Callable[[str], bytes] = fetched) -> None:
        for one in topics:
            check_type("Sns(topics)", one, str, 'each ARN as a text: Sns("arn:aws:sns:eu-west-1:111111111111:orders")')
        if not topics or not all(one.startswith("arn:") for one in topics):
            raise ValueError("give the ARNs of the topics: other accounts' messages are signed by SNS, too")
        self._topics = frozenset(topics)
        self._fetch = fetch
        self._known: dict[str, Certificate] = {}

    def verify(self, headers: Mapping[str, str], body: bytes) -> WebhookEvent:
        """See :class:`onceward.web.webhooks.WebhookVerifier`."""
        del headers  # SNS signs the body only, and all is in it
        try:
            data = parsed(body)
        except ValueError as error:
            raise SignatureRefused(str(error)) from error
        topic = data.get("TopicArn")
        if not isinstance(topic, str) or topic not in self._topics:
            raise SignatureRefused(f"it is of the topic {topic!r}, which is not among those of this receiver")
        self._check(data)
        return WebhookEvent(text_of(data, "MessageId"), text_or_none(data.get("Type")), data, topic)

    def _check(self, data: Mapping[str, object]) -> None:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import padding, rsa
        from cryptography.hazmat.primitives.hashes import SHA1, SHA256

        names = _NOTIFICATION if data.get("Type") == "Notification" else _CONFIRMATION
        lines = [
            f"{name}\n{_signed(data, name)}\n" for name in names if name != "Subject" or data.get(name) is not None
        ]
        digest = {"1": SHA1, "2": SHA256}.get(str(data.get("SignatureVersion")))
        if digest is None:
            raise SignatureRefused(f"its SignatureVersion is {data.get('SignatureVersion')!r}, and 1 and 2 are known")
        key = self._certificate(str(data.get("SigningCertURL"))).public_key()
        if not isinstance(key, rsa.RSAPublicKey):
            raise SignatureRefused("its certificate has no RSA key")
        try:
            signature = base64.b64decode(str(data.get("Signature")), validate=True)
            key.verify(signature, "".join(lines).encode(), padding.PKCS1v15(), digest())
        except (InvalidSignature, ValueError) as error:
            raise SignatureRefused("its signature is missing or wrong") from error

    def _certificate(self, url: str) -> "Certificate":
        from cryptography import x509

        if not _FROM_SNS.fullmatch(url):
            raise SignatureRefused("its certificate is not at an address of SNS")
        known = self._known.get(url)
        if known is None:
            try:
                known = x509.load_pem_x509_certificate(self._fetch(url))
            except (OSError, HTTPException) as error:
                raise SignatureRefused(f"its certificate could not be fetched: {error}") from error
            except ValueError as error:
                raise SignatureRefused(f"its certificate cannot be read: {error}") from error
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[url] = known
        return known


def _signed(data: Mapping[str, object], name: str) -> str:
    """Return a signed text. What is signed are lines, so a line break in another field could make one message look like another."""
    text = data.get(name)
    if not isinstance(text, str) or ("\n" in text and name != "Message"):
        raise SignatureRefused(f"its {name} is missing, or is no single line")
    return text
