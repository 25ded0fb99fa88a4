"""Whose key it is. A key counts within one scope, so no client can read another's answer by guessing its key.

The draft's section on security advises the same: "implement a unique composite key ... by combining the idempotency key sent
by the client with other client specific attributes known only to the resource". Only the application knows these attributes,
so ``Rules(scope=...)`` has no default.
"""

from collections.abc import Callable
from typing import ClassVar, Final

from onceward.core.arguments import check_hook
from onceward.errors import KeyMissing
from onceward.http.answer import Answer
from onceward.http.credentials import Credential, Nobody, digest, required, said
from onceward.http.request import Request
from onceward.http.route import TOKEN
from onceward.keys.ledger_keys import ledger_key

Identify = Callable[[Request], object]
_COOKIE: Final = "cookie:"
_HEADER: Final = "header:"
_CHOICES: Final = (
    "say which caller a key belongs to, so that no caller gets the answer of another. Use one of: "
    "Scope.CREDENTIAL, the Authorization or X-Api-Key that was sent, for API keys that do not change; "
    "a verified user: django_user(), rest_framework_user() or starlette_user() of onceward.web.users, "
    "dependency(...) of onceward.web.fastapi, Scope.HOST where API Gateway or the web server authenticates, "
    "or a callable that is given the request; "
    "'cookie:NAME'; 'header:NAME', which a proxy you trust sets; "
    "or Scope.EVERYBODY, when all callers may get each other's answers"
)


class _Pass:
    def __repr__(self) -> str:
        return "Scope.PASS"


class Scope:
    """Who the caller is, whose key counts: a choice for ``Rules(scope=...)``.

    Args:
        identify: a callable that is given the :class:`Request`. It returns the caller as a str or an int, such as the user's
            primary key, or a tuple of them. It may also return :attr:`PASS` or an :class:`Answer`. If it returns None, or a
            tuple with None, the request is refused.
        said: the text that ``repr`` returns.
        dependency: a callable that the host calls first; its result is the caller.

    Attributes:
        CREDENTIAL: the credential itself: a hash of the Authorization and X-Api-Key headers, for API keys that do not change.
        HOST: the caller that API Gateway, the function URL or the web server (``REMOTE_USER``) has authenticated.
        EVERYBODY: all callers share one scope, so everybody who knows a key gets its answer.
        PASS: what a callable returns to pass a request on unguarded. The application must answer it with 4xx.

    Raises:
        TypeError: ``identify`` cannot be called as a plain function.
    """

    CREDENTIAL: ClassVar["Scope"]
    HOST: ClassVar["Scope"]
    EVERYBODY: ClassVar["Scope"]
    PASS: ClassVar[object] = _Pass()

    def __init__(
        self, identify: Identify, said: str = "Scope(...)", dependency: Callable[..., object] | None = None
    ) -> None:
        check_hook("scope", identify)
        self.dependency = dependency
        self._identify = identify
        self._said = said

    def __call__(self, request: Request) -> object:
        """Return the caller, PASS or an answer.

        Raises:
            Unscoped: the caller is unknown.
            TypeError: the callable returned something that cannot be part of a key.
        """
        return _told(self._identify(request))

    def __repr__(self) -> str:
        return self._said

    def or_pass(self) -> "Scope":
        """Return this scope, but pass requests without a caller to the application, which must answer them with 4xx."""

        def identify(request: Request) -> object:
            try:
                return self(request)
            except Nobody:
                return Scope.PASS

        return Scope(identify, f"{self._said}.or_pass()", self.dependency)

    @staticmethod
    def credential(*headers: str) -> "Scope":
        """Return the scope of the credential in one or more headers, as in ``Scope.credential("X-Auth-Token")``.

        Raises:
            ValueError: no name is given, or one is not a valid header name.
        """
        if not headers or not all(TOKEN(str(name)) for name in headers):
            raise ValueError(f"Scope.credential{headers!r}: give the names of headers, as in 'X-Auth-Token'")
        return Scope(Credential(headers), f"Scope.credential({', '.join(map(repr, headers))})")


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
    if source is None:
        raise TypeError(f"scope= is missing: {_CHOICES}")
    if callable(source):
        return Scope(source)
    if not isinstance(source, str):
        raise TypeError(f"scope={source!r}: {_CHOICES}")
    kind = next((kind for kind in (_COOKIE, _HEADER) if source.startswith(kind)), "")
    name = source.removeprefix(kind)
    if not kind or not TOKEN(name):
        raise ValueError(f"scope={source!r}: {_CHOICES}")
    if kind == _COOKIE:
        return Scope(lambda request: digest(source, required(request.cookie(name), f"the cookie {name}")), source)
    header = name.lower()
    return Scope(
        lambda request: digest(_HEADER + header, required("\n".join(said(request, header)), f"the header {name}")),
        source,
    )


def _host(request: Request) -> str:
    if request.identity is None:
        raise Nobody("neither the gateway nor the web server in front of this service has authenticated the caller")
    return digest("identity", request.identity)


def _told(scope: object) -> object:
    """Return a callable's result, if it can be part of a key."""
    if (type(scope) is str and scope.strip()) or type(scope) is int or scope is Scope.PASS or isinstance(scope, Answer):
        return scope
    error: Exception | None = None
    if type(scope) is not bool:
        try:
            ledger_key("scope", scope)
        except KeyMissing as missing:
            raise Nobody("this server cannot tell who the caller is") from missing
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


Scope.CREDENTIAL = Scope(Credential(("Authorization", "X-Api-Key")), "Scope.CREDENTIAL")
Scope.HOST = Scope(_host, "Scope.HOST")
Scope.EVERYBODY = Scope(lambda _: "*", "Scope.EVERYBODY")
