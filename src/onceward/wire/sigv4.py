"""Signature Version 4: proves to AWS who sent a request, and that nobody changed it.

The rules: IAM User Guide, "AWS Signature Version 4 for API requests" (Create a signed AWS API request); for S3, the S3 API
Reference, "Authenticating Requests (AWS Signature Version 4)". Calls of one action within one second differ only in their
content; :class:`Prepared` is the rest.
"""

import time
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple

from onceward.wire.credentials import Credentials

ALGORITHM = "AWS4-HMAC-SHA256"


def stamp(at: float) -> str:
    """Return a time (seconds since the epoch) in the format of ``X-Amz-Date``."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at))


class Prepared(NamedTuple):
    """A request that you can sign once you know its content's hash."""

    canonical: bytes  # the canonical request without its last line, the content's hash
    scope: bytes  # the string to sign without its last line, the canonical request's hash
    key: "Key"
    headers: dict[str, str]  # those to send, including the date and the session token
    authorization: str  # the header of that name without the signature at its end

    def signature(self, content_sha256: str) -> str:
        """Return the signature for content with this hash (hex)."""
        request = sha256(self.canonical + content_sha256.encode()).hexdigest()
        return self.key.digest(self.scope + request.encode()).hex()


class Key:
    """An HMAC-SHA256 key (RFC 2104) with both blocks hashed already: half of the standard library's time."""

    def __init__(self, secret: bytes) -> None:
        block = (secret if len(secret) <= 64 else sha256(secret).digest()).ljust(64, b"\0")
        self._inner = sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = sha256(bytes(byte ^ 0x5C for byte in block))

    def digest(self, message: bytes) -> bytes:
        """Return a message's HMAC."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(message)
        outer.update(inner.digest())
        return outer.digest()


class Signer:
    """Signs the requests to one service in one region."""

    def __init__(self, region: str, service: str) -> None:
        self._region, self._service = region, service
        self._key: tuple[str, Credentials, Key] | None = None

    def prepare(
        self, method: str, path: str, headers: Mapping[str, str], credentials: Credentials, at: float
    ) -> Prepared:
        """Return a request that is ready to sign ``at`` a time (seconds since the epoch). Its path is encoded as sent.

        ``headers`` are all headers to sign, by lower-case name. Values must have no needless spaces. ``host`` must be among
        them. The date and the session token are added here.
        """
        date = stamp(at)
        signed = {**headers, "x-amz-date": date}
        if credentials.token:
            signed["x-amz-security-token"] = credentials.token
        names = ";".join(sorted(signed))
        lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
        scope = f"{date[:8]}/{self._region}/{self._service}/aws4_request"
        return Prepared(
            f"{method}\n{path}\n\n{lines}\n{names}\n".encode(),
            f"{ALGORITHM}\n{date}\n{scope}\n".encode(),
            self._signing_key(date[:8], credentials),
            signed,
            f"{ALGORITHM} Credential={credentials.access_key}/{scope}, SignedHeaders={names}, Signature=",
        )

    def _signing_key(self, day: str, credentials: Credentials) -> Key:
        held = self._key
        if held is None or held[0] != day or held[1] is not credentials:
            key = f"AWS4{credentials.secret_key}".encode()
            for part in (day, self._region, self._service, "aws4_request"):
                key = Key(key).digest(part.encode())
            self._key = held = day, credentials, Key(key)
        return held[2]
