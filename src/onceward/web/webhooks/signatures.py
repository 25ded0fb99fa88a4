"""Code for the rules of all senders: secrets, signatures, times, and senders that sign by HMAC.

The senders' own libraries check the same few lines, and most bring a client of all their services along. The tests compare with them.
"""

import base64
import hashlib
import hmac
import re
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import msgspec

from onceward.web.webhooks.events import SignatureRefused, Verified, WebhookEvent, parse_object, text_of, text_or_none

TOLERANCE: Final = 300.0  # seconds: what Standard Webhooks, Stripe and Slack advise
PREFIX: Final = "whsec_"
_SECONDS: Final = re.compile(r"[0-9]{1,12}")
_CANONICAL: Final = msgspec.json.Encoder(order="deterministic").encode


class HmacSender:
    """A sender that signs with a secret that you share: HMAC with SHA-256.

    The class attributes name the headers of the signature and the time, and the places of the id, the type and the source. A
    place is the name of a header, or a path in the body that begins with a dot, as in ``.payload.account_id``. A ``*`` stands
    for one of the ``prefixes``, the same for all headers of a delivery.

    Args:
        secret: as the sender shows it; several while you change it.
        tolerance: how many seconds old, or ahead, a delivery may be, if the sender signs the time.

    Raises:
        ValueError, TypeError: a secret is not valid.
    """

    signature: ClassVar[str]
    parts: ClassVar[tuple[str, str, str] | None] = None  # of a header t=1,v1=a: between pairs, the time, a signature
    at: ClassVar[str | None] = None  # the header of the time; None if none is signed, or it is in the signature
    signs: ClassVar[str] = "{body}"  # also {id}, {at} and {url}
    form: ClassVar[str] = "{hex}"  # or {base64}: how the signature is written
    prefixes: ClassVar[tuple[str, ...]] = ("",)
    id: ClassVar[str | None] = None  # None if events have no id: the key is then a hash of the body
    kind: ClassVar[str] = ".type"
    source: ClassVar[str | None] = None
    url = ""

    def __init__(self, *secret: str, tolerance: float = TOLERANCE) -> None:
        self.keys = [self.key_of(one) for one in check_secrets(secret)]
        self.tolerance = tolerance

    def verify(self, headers: Mapping[str, str], body: bytes) -> Verified:
        """See :class:`WebhookVerifier`."""
        names = next((one for one in self.prefixes if self.signature.replace("*", one) in headers), self.prefixes[0])
        own = (
            headers
            if not names
            else {f"*{n[len(names) :]}": text for n, text in headers.items() if n.startswith(names)}
        )
        sent, at = self.signatures_of(own)
        if at is not None:
            check_time(at, self.tolerance)
        before = self.signs.removesuffix("{body}").format(id=own.get(self.id or "", ""), at=at, url=self.url)
        macs = [hmac.digest(key, before.encode() + body, hashlib.sha256) for key in self.keys]
        check(sent, [self.form.format(hex=mac.hex(), base64=base64.b64encode(mac).decode()) for mac in macs])
        return self.event_of(own, parse_object(body))

    def key_of(self, secret: str) -> bytes:
        """Return the key of the HMAC. Raises ValueError if the secret has none."""
        return secret.encode()

    def signatures_of(self, headers: Mapping[str, str]) -> tuple[list[str], str | None]:
        """Return the signatures of a delivery, and the time in seconds that they sign, if any."""
        value = headers.get(self.signature, "")
        if self.parts is None:
            return [value], None if self.at is None else headers.get(self.at, "")
        between, at, signature = self.parts
        pairs = [one.strip().partition("=") for one in value.split(between)]
        times = [text for name, _, text in pairs if name == at]
        return [text for name, _, text in pairs if name == signature], next(iter(times), "")

    def event_of(self, headers: Mapping[str, str], data: dict[str, object]) -> Verified:
        """Return the event of a delivery whose signature is right. Raises ValueError if there is no event in it."""
        name = content_id(data) if self.id is None else text_of({self.id: read(headers, data, self.id)}, self.id)
        source = None if self.source is None else read(headers, data, self.source)
        return WebhookEvent(name, read(headers, data, self.kind), data, source)


def read(headers: Mapping[str, str], data: object, place: str) -> str | None:
    """Return the text at a place of a delivery; None if there is none."""
    if not place.startswith("."):
        return headers.get(place) or None
    for name in place[1:].split("."):
        data = data.get(name) if isinstance(data, dict) else None
    return text_or_none(data)


def check_secrets(secrets: Sequence[str]) -> Sequence[str]:
    """Return the secrets; raises ValueError or TypeError if one cannot be meant."""
    if not secrets or not all(secrets):
        raise ValueError("a secret is missing or empty: anybody could sign with it")
    for secret in secrets:
        if secret != secret.strip() or len(secret.splitlines()) > 1:
            raise ValueError("a secret has a space or a line break at its end: take it out, such as by .strip()")
    return secrets


def check(sent: Sequence[str], right: Sequence[str]) -> None:
    """Raise SignatureRefused if none of the signatures is right. The time that it takes does not tell how far one is right."""
    # All are compared, always.
    equal = [hmac.compare_digest(one.encode(), other.encode()) for one in sent for other in right]
    if not any(equal):
        raise SignatureRefused("its signature is missing or wrong")


def check_bearer(headers: Mapping[str, str], tokens: Sequence[str]) -> None:
    """Raise SignatureRefused if the sender has given none of these tokens, as ``Authorization: Bearer TOKEN``."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    try:
        check([token.strip() if scheme.lower() == "bearer" else ""], tokens)
    except SignatureRefused as error:
        raise SignatureRefused("its token is missing or wrong") from error


def check_time(at: str, tolerance: float) -> None:
    """Raise SignatureRefused if a time in seconds is too far from this machine's."""
    if not _SECONDS.fullmatch(at):
        raise SignatureRefused("the time of its signature is missing or wrong")
    if not abs(time.time() - int(at)) <= tolerance:
        raise SignatureRefused(f"its time differs by more than {tolerance:g} s from this machine's clock")


def content_id(*parts: object) -> str:
    """Return a key for an event whose sender gives none: 128 bits of a hash of its content."""
    return hashlib.sha256(_CANONICAL(parts)).hexdigest()[:32]
