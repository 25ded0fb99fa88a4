"""Whose key it is. A key counts within one scope, so no client can read another's answer by guessing its key.

The draft's section on security advises the same: "implement a unique composite key ... by combining the idempotency key sent
by the client with other client specific attributes known only to the resource". Only the application knows these attributes,
so ``Rules(scope=...)`` has no default. Of credentials only a hash is kept.
"""

import re
from collections.abc import Callable
from hashlib import sha256
from typing import ClassVar, Final

from onceward.core.arguments import check_hook
from onceward.errors import KeyMissing
from onceward.http.answer import TOKEN, Answer
from onceward.http.request import Request
from onceward.keys.ledger_keys import ledger_key
from onceward.observe.logs import logger

Identify = Callable[[Request], object]
_COOKIE: Final = "cookie:"
_HEADER: Final = "header:"
_CHOICES: Final = (
    "say which caller a key belongs to, so that no caller gets the answer of another. Use one of: "
    "Scope.CREDENTIAL, the Authorization or X-Api-Key that was sent, for API keys that do not change; "
    "a verified user: django_user(), rest_framework_user() or starlette_user() of onceward.web.users, "
    "dependency(...) of onceward.web.fastapi, Scope.HOST where API Gateway or the web server authenticates, "
    "or a callable that is given the request; "
    "'cookie:NAME', an opaque session id, and no signed cookie whose value changes; 'header:NAME', which a proxy you trust sets; "
    "or Scope.EVERYBODY, when all callers may get each other's answers"
)


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
_BARE: Final = frozenset({"", "apikey", "basic", "bearer", "dpop", "token"})
_LOOKS: Final = 20  # requests whose credentials are looked at for tokens that may expire
_JWT: Final = re.compile(
    r"(?<![\w-])eyJ[\w-]+\.eyJ[\w-]+\."
).search  # RFC 7519, section 3.1: two objects of JSON in base64


class Unscoped(ValueError):
    """The owner of a key is unknown. The text tells the reader of the answer what is missing."""


def _credential(*headers: str) -> Identify:
    """Return what tells callers apart by their credentials in ``headers``."""
    names = sorted({name.lower() for name in headers}, key=lambda name: (name != _AUTHORIZATION, name))
    looks = _LOOKS

    def identify(request: Request) -> str:
        nonlocal looks
        sent = [
            f"{name}: {line}" for name in names for line in request.lines(name) if line.strip().lower() not in _BARE
        ]
        if names[0] == _AUTHORIZATION:
            _check(request, sent)
        if not sent:
            raise Unscoped(f"the request has no credential ({', '.join(names)})")
        text = "\n".join(sent)
        if looks:
            looks -= 1
            if _JWT(text):
                looks = 0
                logger().warning(
                    "the scope is the credential itself, and a caller sent a token (JWT), which may expire. If a client renews its "
                    "token between two tries, it counts as another caller, and its request runs twice. Give scope= a verified user instead"
                )
        return digest("credential", text)

    return identify


def _check(request: Request, sent: list[str]) -> None:
    """Refuse credentials that cannot identify a retry or a caller."""
    if not sent or not sent[0].startswith(_AUTHORIZATION):
        if lines_of(request, "cookie"):
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


def lines_of(request: Request, header: str) -> list[str]:
    """Return the lines of a header that are not empty."""
    return list(filter(str.strip, request.lines(header)))


def require(value: str | None, what: str) -> str:
    """Return what a request must carry. Raises Unscoped if it is missing."""
    if not value:
        raise Unscoped(f"{what} is missing, so the caller is unknown")
    return value


def digest(kind: str, text: str) -> str:
    """Return 128 bits of a hash. Operators read the ledger, so it must not show credentials."""
    return sha256(f"{kind}\n{text}".encode("utf-8", "surrogateescape")).hexdigest()[:32]


class Scope:
    """Who the caller is, whose key counts: a choice for ``Rules(scope=...)``.

    Args:
        identify: a callable that is given the :class:`Request`. It returns the caller as a str or an int, such as the user's
            primary key, or a tuple of them. It may also return an :class:`Answer`. If it returns None, or a tuple with None, the
            request is refused.
        dependency: a callable that the host calls first; its result is the caller.

    Attributes:
        CREDENTIAL: the credential itself: a hash of the Authorization and X-Api-Key headers, for API keys that do not change.
        HOST: the caller that API Gateway, the function URL or the web server (``REMOTE_USER``) has authenticated.
        EVERYBODY: all callers share one scope, so everybody who knows a key gets its answer.

    Raises:
        TypeError: ``identify`` cannot be called as a plain function.
    """

    CREDENTIAL: ClassVar["Scope"]
    HOST: ClassVar["Scope"]
    EVERYBODY: ClassVar["Scope"]

    def __init__(self, identify: Identify, dependency: Callable[..., object] | None = None) -> None:
        check_hook("scope", identify)
        self.dependency = dependency
        self._identify = identify

    def __call__(self, request: Request) -> object:
        """Return the caller, or an answer.

        Raises:
            Unscoped: the caller is unknown.
            TypeError: the callable returned something that cannot be part of a key.
        """
        scope = self._identify(request)
        if (type(scope) is str and scope.strip()) or type(scope) is int or isinstance(scope, Answer):
            return scope
        return caller_of(scope)

    @staticmethod
    def credential(*headers: str) -> "Scope":
        """Return the scope of the credential in one or more headers, as in ``Scope.credential("X-Auth-Token")``.

        Raises:
            ValueError: no name is given, or one is not a valid header name.
        """
        if not headers or not all(TOKEN(str(name)) for name in headers):
            raise ValueError(f"Scope.credential{headers!r}: give the names of headers, as in 'X-Auth-Token'")
        return Scope(_credential(*headers))


def scope_of(source: object) -> Scope | None:
    """Return the chosen scope; None for EVERYBODY.

    Args:
        source: a Scope, a callable, ``header:`` or ``cookie:`` and a name.

    Raises:
        TypeError: it is none of these, or a coroutine function. The text lists the choices.
        ValueError: it is not a valid header or cookie name.
    """
    if isinstance(source, Scope):
        return None if source is Scope.EVERYBODY else source
    if callable(source):
        return Scope(source)
    if not isinstance(source, str):
        raise TypeError(f"scope={source!r}: {_CHOICES}")
    kind = next((kind for kind in (_COOKIE, _HEADER) if source.startswith(kind)), "")
    name = source.removeprefix(kind)
    if not kind or not TOKEN(name):
        raise ValueError(f"scope={source!r}: {_CHOICES}")
    if kind == _COOKIE:
        return Scope(lambda request: digest(source, require(request.cookie(name), f"the cookie {name}")))
    header = name.lower()
    return Scope(
        lambda request: digest(_HEADER + header, require("\n".join(lines_of(request, header)), f"the header {name}"))
    )


def _host(request: Request) -> str:
    if request.identity is None:
        raise Unscoped("neither the gateway nor the web server in front of this service has authenticated the caller")
    return digest("identity", request.identity)


def caller_of(scope: object) -> object:
    """Return what a callable has said of a caller. Raises Unscoped if that is nothing, TypeError if it cannot be part of a key."""
    error: Exception | None = None
    if type(scope) is not bool:
        try:
            ledger_key("scope", scope)
        except KeyMissing as missing:
            raise Unscoped("this server cannot tell who the caller is") from missing
        except TypeError as wrong:
            error = wrong
        else:
            return scope
    if callable(close := getattr(scope, "close", None)):
        close()  # a coroutine that is never awaited
    raise TypeError(
        f"scope= returned a {type(scope).__name__}, which cannot say who the caller is: return a str or an int, such as the "
        "user's primary key, or a tuple of them; None when nobody can tell"
    ) from error


Scope.CREDENTIAL = Scope(_credential("Authorization", "X-Api-Key"))
Scope.HOST = Scope(_host)
Scope.EVERYBODY = Scope(lambda _: "*")
