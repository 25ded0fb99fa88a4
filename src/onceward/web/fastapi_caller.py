"""FastAPI's dependencies as scopes: a dependency of the application finds the caller, who owns the key."""

from collections.abc import Callable
from inspect import isawaitable, iscoroutinefunction
from typing import Annotated, Any, Final, cast
from weakref import WeakKeyDictionary

from fastapi import Depends
from fastapi.concurrency import run_in_threadpool
from fastapi.requests import Request as FastApiRequest
from fastapi.routing import APIRoute
from fastapi.security.base import SecurityBase

from onceward.http.request import Request
from onceward.http.rules import Rules
from onceward.http.scope import Scope as Whose
from onceward.web.asgi_messages import DISCONNECT, Message, Receive, Scope, Send, replayed

_FOUND: Final = "onceward.caller"  # in ASGI's scope: a list with the dependency's result


def dependency(call: Callable[..., Any], who: Callable[[Any], object] | None = None) -> Whose:
    """Return the scope of the caller that a dependency finds, as in ``Rules(scope=dependency(current_user, lambda user: user.id))``.

    The dependency is called before the key is read. A caller that it refuses gets its exception as the answer, never a replay.
    If the endpoint depends on it, too, it is called a second time.

    Args:
        call: the dependency, as you give it to ``Depends``.
        who: returns what identifies a caller; by default the dependency's result. It is readable in the ledger. It runs as an
            endpoint does: while dependencies with ``yield`` are open, and in a thread unless it is a coroutine function.

    Raises:
        TypeError: the dependency is one of ``fastapi.security``, which verify nobody, and ``who`` is missing; or ``who``
            cannot be called.
    """
    if isinstance(call, SecurityBase) and who is None:
        raise TypeError(
            f"dependency({type(call).__name__}): it only reads the credential, which would be readable in the ledger. Give "
            "a dependency that verifies it and returns the user, who= that does, or scope=Scope.CREDENTIAL"
        )
    if who is not None and not callable(who):
        raise TypeError(f"who={who!r}: give a callable, as in dependency(current_user, lambda user: user.id)")

    def caller(request: Request) -> object:
        if _FOUND not in request.native:
            raise RuntimeError(
                "dependency(...) works only in routes of idempotent_route, or with Depends(idempotent(...)). Use one of them. "
                "Nothing has run"
            )
        found = cast("list[object]", request.native[_FOUND])
        return found[0]

    return Whose(caller, "dependency(...)", call if who is None else _identifying(call, who))


def _identifying(call: Callable[..., Any], who: Callable[[Any], object]) -> Callable[..., Any]:
    """Return a dependency that calls ``who`` with the result of another one, which ends after it."""
    awaits = iscoroutinefunction(who) or iscoroutinefunction(type(who).__call__)

    async def identify(found: Annotated[Any, Depends(call)]) -> object:
        if found is None:
            return None
        caller = who(found) if awaits else await run_in_threadpool(who, found)
        return await caller if isawaitable(caller) else caller

    return identify


class Caller:
    """Calls the dependency that finds the caller. It has a route for this, because only a route can call one."""

    def __init__(self, call: Callable[..., Any], rules: Rules) -> None:
        async def found(request: FastApiRequest, caller: Annotated[Any, Depends(call)]) -> None:
            request.scope[_FOUND].append(caller)

        self._endpoint = found
        self._most = rules.max_request
        self._methods = sorted({method for route in rules.routes for method in route.methods})
        # By application, because each may override dependencies, and by the parameters in the path.
        self._routes: WeakKeyDictionary[Any, dict[frozenset[str], APIRoute]] = WeakKeyDictionary()

    @classmethod
    def of(cls, rules: Rules) -> "Caller | None":
        """Return a Caller for the rules, or None if their scope is not a dependency."""
        call = None if rules.scope is None else rules.scope.dependency
        return None if call is None else cls(call, rules)

    async def found(self, scope: Scope, receive: Receive, send: Send) -> tuple[Scope, Receive] | None:
        """Return the scope with the caller in it, and the next ``receive``; None if the request was refused and answered."""
        if scope["method"].upper() not in self._methods:
            return scope, receive
        messages = await _first(receive, self._most)
        inner = {**scope, _FOUND: []}
        sent: list[Message] = []

        async def keep(message: Message) -> None:
            sent.append(message)

        await self._route(scope).handle(inner, replayed(messages, receive), keep)
        if inner[_FOUND]:
            return {**scope, _FOUND: inner[_FOUND]}, replayed(messages, receive)
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
