"""Whose key it is: a key counts within one scope, so that no client reads another's answer by guessing its key.

The draft's section on security advises the same: "implement a unique composite key ... by combining the idempotency key sent
by the client with other client specific attributes known only to the resource".
"""

from collections.abc import Callable
from hashlib import sha256
from typing import Final

from onceward.arguments import check_hook
from onceward.errors import KeyMissing
from onceward.keys import ledger_key
from onceward.web.request import Request
from onceward.web.route import TOKEN

Scope = Callable[[Request], object]
ANONYMOUS: Final = "anonymous"
_COOKIE: Final = "cookie:"

# Schemes whose credentials are made anew for each request, by a time, a nonce or a signature: the retry of a request would
# be taken for somebody else's, and run again.
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


class Unscoped(ValueError):
    """Nobody can tell whose key it is; the text says to whoever reads the answer what is missing."""


def credentials(request: Request) -> str:
    """Return the default scope: a hash of who the host says the caller is, or else of the credentials it sent.

    These are the Authorization header or, without one, X-Api-Key; an empty one is none. A request with neither, and without
    cookies, is anonymous: all such requests share one scope.

    Raises:
        Unscoped: the credentials change with each request; or there are cookies and no Authorization, so that the caller may
            be known by one of them, and which one only the application knows. (An API key may be that of a page which all
            its users send.)
    """
    if request.identity is not None:
        return _digest("identity", request.identity)
    if lines := list(filter(str.strip, request.lines("authorization"))):
        scheme = lines[0].split(maxsplit=1)[0].lower()
        if scheme in _NEW_EACH_TIME:
            raise Unscoped(
                f"credentials of the scheme {scheme} are new for each request, so a retry cannot be recognised by "
                "them. This server has to be told who its callers are (scope=)"
            )
        return _digest("authorization", "\n".join(lines))
    if _said(request, "cookie"):
        raise Unscoped(
            "the request has cookies and no Authorization. This server has to be told which cookie says who its callers are "
            "(scope='cookie:NAME'), or that it does not matter (scope=None)"
        )
    if lines := _said(request, "x-api-key"):
        return _digest("x-api-key", "\n".join(lines))
    return ANONYMOUS


def scope_of(source: Scope | str) -> Scope:
    """Return what tells the scope of a request.

    Args:
        source: a callable, the name of a header, or ``cookie:`` and the name of a cookie.

    Returns:
        A callable that raises Unscoped when there is none.

    Raises:
        TypeError: it is neither, or a coroutine function.
        ValueError: it cannot be the name of a header or cookie.
    """
    if source is credentials:
        return credentials
    if callable(source):
        check_hook("scope", source)
        return lambda request: _told(source(request))
    if not source or type(source) is not str:
        raise TypeError(
            f"scope={source!r}: give a callable, a header's name, 'cookie:NAME', or None for one scope for all"
        )
    cookie = source.removeprefix(_COOKIE)
    if not TOKEN(cookie):
        raise ValueError(f"scope={source!r}: give a header's name, as in 'X-Tenant', or 'cookie:NAME'")
    if source.startswith(_COOKIE):
        return lambda request: _digest(source, _sent(request.cookie(cookie), f"the cookie {cookie}"))
    header = source.lower()
    return lambda request: _digest(header, _sent("\n".join(_said(request, header)), f"the header {source}"))


def _said(request: Request, header: str) -> list[str]:
    """Return the lines of a header that are not empty."""
    return list(filter(str.strip, request.lines(header)))


def _told(scope: object) -> object:
    """Return what a callable has said, if keys can be made of it."""
    if (type(scope) is str and scope.strip()) or type(scope) is int:
        return scope
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
        close()  # a coroutine that nobody is going to await
    raise TypeError(
        f"scope= returned a {type(scope).__name__}, which cannot say who the caller is: return a str or an int, such as the "
        "user's primary key, or a tuple of them; None when nobody can tell"
    ) from error


def _sent(value: str | None, what: str) -> str:
    if not value:
        raise Unscoped(f"{what} is missing, which says who the caller is")
    return value


def _digest(kind: str, text: str) -> str:
    """Return 128 bits of a hash: in the ledger, where operators read it, nobody's credentials are to be seen."""
    return sha256(f"{kind}\n{text}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
