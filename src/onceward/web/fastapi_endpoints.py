"""FastAPI's endpoints: their dependencies, which of these end too late, and whether an endpoint began."""

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import wraps
from inspect import isawaitable, iscoroutinefunction
from types import CellType, FunctionType
from typing import Annotated, Any, Final, NamedTuple, cast
from weakref import WeakKeyDictionary

from fastapi import Depends
from fastapi.concurrency import run_in_threadpool
from fastapi.dependencies.models import Dependant
from fastapi.requests import Request as FastApiRequest
from fastapi.routing import APIRoute
from fastapi.security.base import SecurityBase

from onceward.http.request import Request
from onceward.http.rules import Rules
from onceward.http.scope import Scope as Whose
from onceward.web.asgi_began import BEGAN
from onceward.web.asgi_messages import DISCONNECT, Message, Receive, Scope, Send, prepend

_TO_USER: Final = 5  # frames from a warning to the line with the endpoint's decorator


def dependencies(dependant: Dependant) -> Iterator[Dependant]:
    """Return all dependencies of an endpoint, those of the router first."""
    for one in dependant.dependencies:
        yield from dependencies(one)
        yield one


def warn_of_late_ends(route: "APIRoute") -> None:
    """Warn of dependencies that end after the answer (FastAPI's docs, "Dependencies with yield", scope)."""
    late = [
        getattr(one.call, "__name__", type(one.call).__name__)
        for one in dependencies(route.dependant)
        if getattr(one, "scope", "function") != "function" and _is_generator(one.call)  # FastAPI 0.121 and later
    ]
    if late:
        names = ", ".join(dict.fromkeys(late))
        warnings.warn(
            f"{route.path}: {names} ends after the answer is recorded and sent. If it fails then, as in a commit, the effect is "
            f'lost: a retry gets that answer. Commit in the endpoint, or declare it as Depends({late[0]}, scope="function")',
            UserWarning,
            stacklevel=_TO_USER,
        )


def _is_generator(call: Callable[..., Any] | None) -> bool:
    forms = () if call is None else (inspect.unwrap(call), type(call).__call__)
    return any(inspect.isgeneratorfunction(form) or inspect.isasyncgenfunction(form) for form in forms)


_EMPTY: Final = CellType()
# The scope of a request whose key is held. Its endpoint notes there that it has begun.
ENDPOINT: Final[ContextVar[Scope | None]] = ContextVar("onceward_fastapi_endpoint", default=None)


class Mark(NamedTuple):
    """Where an endpoint notes that it has begun."""

    dependant: Dependant | None  # FastAPI calls the endpoint through it; None if it was not found
    call: Callable[..., Any] | None = None  # the function that notes it

    @property
    def holds(self) -> bool:
        """Whether an endpoint without a note has not begun. This is unknown if something else has replaced the call."""
        return self.dependant is not None and self.dependant.call is self.call


def mark_begin(handler: Callable[..., Any]) -> Mark:
    """Make the endpoint of a FastAPI handler note when it begins: after authentication and validation.

    FastAPI lets integrations wrap ``dependant.call`` when the handler is made. It unwraps to find the kind of function.
    """
    dependant = _dependant_of(handler)
    if dependant is None:
        return Mark(None)
    call = dependant.call
    assert call is not None  # an endpoint's always has one

    @wraps(call)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        scope = ENDPOINT.get()
        if scope is not None:
            scope[BEGAN] = True
        return call(*args, **kwargs)

    dependant.call = wrapper
    return Mark(dependant, wrapper)


def _dependant_of(handler: object, depth: int = 5) -> Dependant | None:
    """Return the dependant of a handler's endpoint, also if an integration has wrapped the handler."""
    held = [cell.cell_contents for cell in getattr(handler, "__closure__", None) or () if cell != _EMPTY]
    dependant = next((value for value in held if isinstance(value, Dependant)), None)
    inner = (value for value in held if isinstance(value, FunctionType)) if depth else ()
    return dependant or next(filter(None, (_dependant_of(value, depth - 1) for value in inner)), None)


_CALLERS: Final = "onceward.caller"  # in ASGI's scope: a list with the dependency's result


def dependency(call: Callable[..., Any], who: Callable[[Any], object] | None = None) -> Whose:
    """Return the scope of the caller that a dependency finds, as in ``Rules(scope=dependency(current_user, lambda user: user.id))``.

    The dependency is called before the key is read. A caller that it refuses gets its exception as the answer, never a replay.
    If the endpoint depends on it, too, it is called a second time.

    Args:
        call: the dependency, as you give it to ``Depends``.
        who: returns the caller's id; by default the dependency's result. The id is readable in the ledger. ``who`` runs as an
            endpoint does: while dependencies with ``yield`` are open, and in a thread unless it is a coroutine function.

    Raises:
        TypeError: the dependency is one of ``fastapi.security``, which only read credentials, and ``who`` is missing;
            or ``who`` cannot be called.
    """
    if isinstance(call, SecurityBase) and who is None:
        raise TypeError(
            f"dependency({type(call).__name__}): it only reads the credential, which would be readable in the ledger. Give "
            "a dependency that verifies it and returns the user, who= that does, or scope=Scope.CREDENTIAL"
        )

    def caller(request: Request) -> object:
        if _CALLERS not in request.native:
            raise RuntimeError(
                "dependency(...) works only in routes of idempotent_route, or with Depends(idempotent(...)). Use one of them. "
                "Nothing has run"
            )
        callers = cast("list[object]", request.native[_CALLERS])
        return callers[0]

    return Whose(caller, call if who is None else _identifying(call, who))


def _identifying(call: Callable[..., Any], who: Callable[[Any], object]) -> Callable[..., Any]:
    """Return a dependency that calls ``who`` with the result of another one, which ends after it."""
    awaits = iscoroutinefunction(who) or iscoroutinefunction(type(who).__call__)

    async def identify(result: Annotated[Any, Depends(call)]) -> object:
        if result is None:
            return None
        caller = who(result) if awaits else await run_in_threadpool(who, result)
        return await caller if isawaitable(caller) else caller

    return identify


class Caller:
    """Calls the dependency that finds the caller. It has a route for this, because only a route can call one."""

    def __init__(self, call: Callable[..., Any], rules: Rules) -> None:
        async def note_caller(request: FastApiRequest, caller: Annotated[Any, Depends(call)]) -> None:
            request.scope[_CALLERS].append(caller)

        self._endpoint = note_caller
        self._most = rules.max_request
        self._methods = sorted({method for route in rules.routes for method in route.methods})
        # By application, because each may override dependencies, and by the parameters in the path.
        self._routes: WeakKeyDictionary[Any, dict[frozenset[str], APIRoute]] = WeakKeyDictionary()

    @classmethod
    def of(cls, rules: Rules) -> "Caller | None":
        """Return a Caller for the rules, or None if their scope is not a dependency."""
        call = None if rules.scope is None else rules.scope.dependency
        return None if call is None else cls(call, rules)

    async def find(self, scope: Scope, receive: Receive, send: Send) -> tuple[Scope, Receive] | None:
        """Return the scope with the caller in it, and the next ``receive``; None if the request was refused and answered."""
        if scope["method"].upper() not in self._methods:
            return scope, receive
        messages = await _first(receive, self._most)
        inner = {**scope, _CALLERS: []}
        sent: list[Message] = []

        async def keep(message: Message) -> None:
            sent.append(message)

        await self._route(scope).handle(inner, prepend(messages, receive), keep)
        if inner[_CALLERS]:
            return {**scope, _CALLERS: inner[_CALLERS]}, prepend(messages, receive)
        for message in sent:
            await send(message)
        return None

    def _route(self, scope: Scope) -> APIRoute:
        app, names = scope.get("app"), frozenset(scope.get("path_params", ()))
        routes = self._routes.setdefault(self if app is None else app, {})
        if names not in routes:
            path = "/" + "/".join(f"{{{name}}}" for name in sorted(names))
            routes[names] = APIRoute(
                path,
                self._endpoint,
                methods=self._methods,
                response_model=None,
                dependency_overrides_provider=app if hasattr(app, "dependency_overrides") else None,
            )
        return routes[names]


async def _first(receive: Receive, most: int) -> list[Message]:
    """Return the messages of a request's body, up to the one that exceeds ``most`` bytes."""
    messages: list[Message] = []
    size = 0
    while size <= most:
        message = await receive()
        messages.append(message)
        size += len(message.get("body", b""))
        if message["type"] == DISCONNECT or not message.get("more_body", False):
            break
    return messages
