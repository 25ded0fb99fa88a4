"""Who sent a request, by what it carries: credentials, a header, a cookie. Only a hash of these is kept."""

from base64 import urlsafe_b64decode
from hashlib import sha256
from typing import Final

import msgspec

from onceward.http.request import Request
from onceward.observe.logs import logger

_AUTHORIZATION: Final = "authorization"

# Credentials of these schemes change with each request (time, nonce, signature). A retry would look like another caller and run again.
_NEW_EACH_TIME: Final = frozenset(
    {
        "aws",
        "aws4-ecdsa-p256-sha256",
        "aws4-hmac-sha256",
        "concealed",
        "digest",
        "eg1-hmac-sha256",
        "hawk",
        "hmac-sha256",
        "hoba",
        "mutual",
        "negotiate",
        "ntlm",
        "oauth",
        "scram-sha-1",
        "scram-sha-256",
        "sharedkey",
        "sharedkeylite",
        "signature",
    }
)

# A client without its token sends the scheme's name only, as other clients do, too. That is no credential.
_SCHEMES: Final = frozenset({"apikey", "basic", "bearer", "dpop", "token"})
_LOOKS: Final = 100  # requests whose credentials are looked at for tokens that expire
_SHORT: Final = 12  # a header line with only such a name has at most this many characters


class Unscoped(ValueError):
    """The owner of a key is unknown. The text tells the reader of the answer what is missing."""


class Nobody(Unscoped):
    """The request does not say who its caller is."""


class Credential:
    """Tells callers apart by their credentials in ``headers``."""

    def __init__(self, headers: tuple[str, ...]) -> None:
        # Authorization comes first: _check reads it there.
        self._headers = tuple(sorted({name.lower() for name in headers}, key=lambda name: name != _AUTHORIZATION))
        self._looks = _LOOKS

    def __call__(self, request: Request) -> str:
        """Return the caller. Raises Unscoped if the request does not say who that is."""
        sent: list[str] = []
        for name in self._headers:
            for line in request.lines(name):
                if len(line) <= _SHORT and _is_bare(line):
                    continue
                if not line.isspace():
                    sent.append(f"{name}: {line}")
        if self._headers[0] == _AUTHORIZATION:
            self._check(request, sent)
        if not sent:
            raise Nobody(f"the request has no credential ({', '.join(self._headers)})")
        if self._looks:
            self._looks -= 1
            self._warn(sent)
        return digest("credential", "\n".join(sent))

    def _check(self, request: Request, sent: list[str]) -> None:
        """Refuse credentials that cannot identify a retry or a caller."""
        if not sent or not sent[0].startswith(_AUTHORIZATION):
            if said(request, "cookie"):
                # The API key may belong to a web page, so that all its users send the same one.
                raise Unscoped(
                    "the request has cookies and no Authorization. This server must be told which cookie says who its "
                    "callers are (scope='cookie:NAME')"
                )
            return
        scheme = sent[0].split(maxsplit=2)[1].lower()
        if scheme in _NEW_EACH_TIME:
            raise Unscoped(
                f"credentials of the scheme {scheme} are new for each request, so they do not identify a retry. "
                "This server must be told who its callers are (scope=)"
            )

    def _warn(self, sent: list[str]) -> None:
        """Log once that tokens expire."""
        if any(line.count(".") > 1 and _expires(line) for line in sent):
            self._looks = 0
            logger().warning(
                "the scope is the credential itself, and a caller sent a token (JWT) that expires. If a client renews its token between "
                "two tries, it counts as another caller, and its request runs twice. Give scope= a verified user instead"
            )


def said(request: Request, header: str) -> list[str]:
    """Return the lines of a header that are not empty."""
    return list(filter(str.strip, request.lines(header)))


def required(value: str | None, what: str) -> str:
    """Return what a request must carry. Raises Nobody if it is missing."""
    if not value:
        raise Nobody(f"{what} is missing, so the caller is unknown")
    return value


def _is_bare(line: str) -> bool:
    """Return whether a header's line has no credential."""
    said = line.strip()
    return not said or said.lower() in _SCHEMES


def _expires(line: str) -> bool:
    """Return whether a header's line ends with a JWT with an expiry (RFC 7519, section 4.1.4)."""
    parts = line.rsplit(maxsplit=1)[-1].split(".")
    if len(parts) != 3:
        return False
    try:
        claims = msgspec.json.decode(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return False
    return isinstance(claims, dict) and "exp" in claims


def digest(kind: str, text: str) -> str:
    """Return 128 bits of a hash. Operators read the ledger, so it must not show credentials."""
    return sha256(f"{kind}\n{text}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
