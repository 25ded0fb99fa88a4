"""Whose key it is. A key counts within one scope, so that no caller gets another's result by guessing its key."""

from collections.abc import Callable
from hashlib import sha256
from typing import Any, ClassVar, Final

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import principal_components

from onceward.core.arguments import check_hook
from onceward.keys.ledger_keys import ledger_key
from onceward.mcp.call import ToolCall

_CHOICES: Final = (
    "say whose keys they are, so that no caller gets another's result. Give ToolScope.TOKEN, the principal of the verified access token; "
    "ToolScope.SESSION, one session of streamable HTTP, which ends when the client connects again; a callable that gets the context and "
    "returns the caller; or ToolScope.EVERYBODY, when all callers may get each other's results, as with a server over stdio that one user starts"
)


class UnknownCaller(ValueError):
    """The caller is unknown. The text says why."""


class ToolScope:
    """Whose key it is: a choice for ``exactly(scope=...)``.

    Args:
        identify: a callable that gets the context of the call, and returns the caller as a str, an int or a tuple of them. None
            refuses the call.

    Attributes:
        TOKEN: the client, issuer and subject of the access token that the server has verified. It stays the same when the client
            renews its token.
        SESSION: the session of streamable HTTP.
        EVERYBODY: all callers share one scope.
    """

    TOKEN: ClassVar["ToolScope"]
    SESSION: ClassVar["ToolScope"]
    EVERYBODY: ClassVar["ToolScope"]

    def __init__(self, identify: Callable[[Any], object]) -> None:
        check_hook("scope", identify)
        self._identify: Callable[[ToolCall], object] = lambda call: identify(call.context)

    def of(self, call: ToolCall) -> object:
        """Return the caller; None is everybody. Raises UnknownCaller if it is unknown, TypeError if it cannot be part of a key."""
        if self is ToolScope.EVERYBODY:
            return None
        caller = self._identify(call)
        if caller is None or caller == "":
            raise UnknownCaller("this server cannot tell who the caller is")
        ledger_key("scope", caller)
        return caller


class _CallScope(ToolScope):
    """A scope of ours, which is read from the whole call."""

    def __init__(self, identify: Callable[[ToolCall], object]) -> None:
        self._identify = identify


def scope_of(source: object) -> ToolScope:
    """Return the chosen scope; raises TypeError, whose text lists the choices."""
    if isinstance(source, ToolScope):
        return source
    if source is None:
        raise TypeError(f"scope= is missing: {_CHOICES}")
    if not callable(source):
        raise TypeError(f"scope={source!r}: {_CHOICES}")
    return ToolScope(source)


def _session(call: ToolCall) -> str:
    session = call.headers.get("mcp-session-id")
    if not session:
        raise UnknownCaller("this call is in no session")
    return sha256(f"session\n{session}".encode()).hexdigest()[:32]


def _principal(_: ToolCall) -> tuple[str, ...]:
    token = get_access_token()
    if token is None:
        raise UnknownCaller("this call has no verified access token")
    client, issuer, subject = principal_components(token)
    if subject is None:
        # One client can have many users, and a hash of the token would change when it is renewed.
        raise UnknownCaller("the access token names no subject. The server's owner must give scope= a callable")
    return (client, subject) if issuer is None else (client, issuer, subject)


ToolScope.TOKEN = _CallScope(_principal)
ToolScope.SESSION = _CallScope(_session)
ToolScope.EVERYBODY = _CallScope(lambda _: None)
