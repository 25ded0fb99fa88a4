"""Where the key of a tool call comes from, and whose it is.

It is never guessed from equal arguments: two equal calls can be two operations. A key counts within one scope, so that no caller gets
another's result by guessing its key.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Final

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import principal_components
from pydantic import Field

from onceward.core.arguments import check_hook
from onceward.errors import KeyMissing
from onceward.http.scope import Unscoped, caller_of, digest
from onceward.keys.reading import KeySource
from onceward.keys.signatures import CallReader
from onceward.mcp.call import Function, ToolCall

META_NAME: Final = "onceward/idempotencyKey"  # under which our client sends a key
_LONGEST: Final = 255  # characters, as in the proposal SEP-3182
_DESCRIPTION: Final = (
    "Identifies this operation, so that it takes effect once. Make a new unique value, such as a UUID, for each new operation. "
    "If you call again because an answer was lost, late or an error, give the same value and the same other arguments."
)


class KeyPlace:
    """One place that a key can come from. ``tag`` keeps equal texts of two places apart; ``read`` returns None without a key."""

    def __init__(self, tag: str, read: Callable[[ToolCall], object]) -> None:
        self.tag, self.read = tag, read


class KeyArgument(KeyPlace):
    """A key that is an argument of the tool, which the model fills in."""

    def __init__(self, name: str, description: str) -> None:
        super().__init__("argument", lambda call: call.key)
        self.name = name
        self._description = description

    def annotation(self, *, required: bool) -> Any:
        """Return the annotation of the parameter."""
        field = Field(description=self._description, min_length=1, max_length=_LONGEST)
        return Annotated[str if required else str | None, field]


class ArgumentPath(KeyPlace):
    """A value in the tool's own arguments: a path, or a callable that gets the arguments that it names."""

    def __init__(self, function: Function, source: KeySource, claim: str | None) -> None:
        reader = CallReader(function, source, None, claim)

        def read(call: ToolCall) -> object:
            try:
                return reader.read((), call.arguments)[0]
            except KeyMissing:
                return None

        super().__init__("arguments", read)


def _in_meta(*names: str) -> tuple[KeyPlace, ...]:
    return tuple(KeyPlace(name, lambda call, name=name: call.meta.get(name)) for name in names)  # type: ignore[misc]  # a default


class ToolKey:
    """Places for ``exactly(key=...)``: one of them, or a list in the order in which they are asked.

    A place can also be a path over the tool's arguments, such as ``"order.id"``, or a callable that gets the arguments
    that it names.

    Attributes:
        CALL: the field ``idempotencyKey`` of ``tools/call`` (the proposal SEP-3182).
        META: ``onceward/idempotencyKey``, which :func:`call_tool` sends, and ``claudecode/toolUseId`` in ``_meta``. If
            the model decides again to call the tool, the second one is new.
    """

    CALL: ClassVar[object] = KeyPlace("call", lambda call: call.params.get("idempotencyKey"))
    META: ClassVar[object] = _in_meta(META_NAME, "claudecode/toolUseId")

    @staticmethod
    def meta(*names: str) -> object:
        """Return the place of a key in ``_meta``, under one of these names."""
        return _in_meta(*names)

    @staticmethod
    def argument(name: str = "idempotency_key", description: str = _DESCRIPTION) -> object:
        """Return the place of a key that the model gives: an argument that is added to the tool's schema.

        Args:
            name: the argument's name.
            description: tells the model when to give the same value again.
        """
        return KeyArgument(name, description)


class KeyOrder:
    """The places of a tool's key, in order.

    Args:
        function: the tool.
        key: a place, or a sequence of them.
        claim: the name of the parameter that takes the claim.

    Raises:
        TypeError, ValueError: a place is not valid, or does not fit the tool.
    """

    def __init__(self, function: Function, key: object, claim: str | None) -> None:
        self._sources: list[KeyPlace] = []
        for place in _flat(key):
            if isinstance(place, KeyPlace):
                self._sources.append(place)
            elif isinstance(place, str) or callable(place):
                self._sources.append(ArgumentPath(function, place, claim))
            else:
                raise TypeError(
                    f"key={place!r}: give ToolKey.CALL, ToolKey.META, ToolKey.meta(...), ToolKey.argument() or a path"
                )
        if not self._sources:
            raise ValueError(
                "key= is empty: say where the key of a call comes from, as in [ToolKey.META, ToolKey.argument()]"
            )
        self.argument = next((source for source in self._sources if isinstance(source, KeyArgument)), None)
        self.only_argument = len(self._sources) == 1

    def read(self, call: ToolCall) -> tuple[object, str]:
        """Return the key of a call and the tag of its place.

        Raises:
            KeyMissing: no place has a key, or a client's key is no text of at most 255 characters.
        """
        for source in self._sources:
            key = source.read(call)
            if key is None or key == "":
                continue
            if not isinstance(source, ArgumentPath) and not (type(key) in {str, int} and len(str(key)) <= _LONGEST):
                raise KeyMissing(f"the key ({source.tag}) must be a text of 1 to {_LONGEST} characters")
            return key, source.tag
        raise KeyMissing("this call has no idempotency key")


def _flat(key: object) -> list[object]:
    """Return the places in order; a list may contain groups."""
    if isinstance(key, Sequence) and not isinstance(key, str):
        return [place for part in key for place in _flat(part)]
    return [key]


_CHOICES: Final = (
    "say which caller a key belongs to, so that no caller gets the result of another. Use one of: ToolScope.TOKEN, the principal of the verified access token; "
    "ToolScope.SESSION, one session of streamable HTTP, which ends when the client connects again; a callable that gets the context and "
    "returns the caller; or ToolScope.EVERYBODY, when all callers may get each other's results, as with a server over stdio that one user starts"
)


class ToolScope:
    """Who the caller is, whose key counts: a choice for ``exactly(scope=...)``.

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
        """Return the caller; None is everybody. Raises Unscoped if it is unknown, TypeError if it cannot be part of a key."""
        return None if self is ToolScope.EVERYBODY else caller_of(self._identify(call))


class _CallScope(ToolScope):
    """A scope of ours, which is read from the whole call."""

    def __init__(self, identify: Callable[[ToolCall], object]) -> None:
        self._identify = identify


def scope_of(source: object) -> ToolScope:
    """Return the chosen scope; raises TypeError, whose text lists the choices."""
    if isinstance(source, ToolScope):
        return source
    if not callable(source):
        raise TypeError(f"scope={source!r}: {_CHOICES}")
    return ToolScope(source)


def _session(call: ToolCall) -> str:
    session = call.headers.get("mcp-session-id")
    if not session:
        raise Unscoped("this call is in no session")
    return digest("session", session)


def _principal(_: ToolCall) -> tuple[str, ...]:
    token = get_access_token()
    if token is None:
        raise Unscoped("this call has no verified access token")
    client, issuer, subject = principal_components(token)
    if subject is None:
        # One client can have many users, and a hash of the token would change when it is renewed.
        raise Unscoped("the access token names no subject. The server's owner must give scope= a callable")
    return (client, subject) if issuer is None else (client, issuer, subject)


ToolScope.TOKEN = _CallScope(_principal)
ToolScope.SESSION = _CallScope(_session)
ToolScope.EVERYBODY = _CallScope(lambda _: None)
