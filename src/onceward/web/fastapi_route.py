"""FastAPI's routes whose endpoints answer once for each idempotency key, and the dependency that says how."""

from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from copy import copy
from functools import partial
from typing import Any, ClassVar

from fastapi.requests import HTTPConnection, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute

from onceward.claim.claim import Claim
from onceward.claim.held import HeldClaim, innermost
from onceward.core.policy import Options
from onceward.http.answer import Answer
from onceward.http.route import KeyedRequest, PassedRequest, PendingRequest, Route
from onceward.http.rules import Rules, endpoint_rules
from onceward.once import Once
from onceward.web import openapi
from onceward.web.asgi import AsgiIdempotency, read
from onceward.web.asgi_delivery import BEGAN
from onceward.web.asgi_messages import (
    DISCONNECT,
    Message,
    Receive,
    Scope,
    Send,
    prepend,
    request_of,
    whole,
)
from onceward.web.fastapi_endpoints import ENDPOINT, Caller, Mark, dependencies, mark_begin, warn_of_late_ends

# The claim that our route made. Any other claim of a request is the middleware's.
_BEGUN: ContextVar[Claim | None] = ContextVar("onceward_fastapi_begun", default=None)


class Idempotent:
    """What :func:`idempotent` returns: a dependency that gives the claim, and tells the route how to guard."""

    def __init__(self, once: Once, rules: Rules | None, name: str | None, wait: float | None, options: Options) -> None:
        self._rules = endpoint_rules(rules)
        self.guard = partial(AsgiIdempotency, once=once, name=name, wait=wait, **options)
        self.guard(_nothing, rules=self._rules)  # to raise for a wrong option now

    async def __call__(self, connection: HTTPConnection) -> Claim | None:
        """Return the claim of the request; None if it passed unguarded.

        Raises:
            RuntimeError: the endpoint is not guarded by this.
        """
        route = connection.scope.get("route")
        if connection.scope["type"] == "http" and not (isinstance(route, IdempotentRoute) and self in route.declared):
            raise RuntimeError(
                f"{getattr(route, 'path', connection.scope['path'])}: Depends(idempotent(...)) guards nothing here, and the "
                "endpoint has not run. Make its router with route_class=IdempotentRoute, and put the dependency on the endpoint "
                "or on that router"
            )
        return innermost()

    def rules(self, path: str) -> Rules:
        """Return the rules of an endpoint."""
        own = copy(self._rules)
        own.routes = tuple(map(copy, own.routes))
        for route in own.routes:
            route.path = path  # for metrics; the route still matches every path
        return own


class IdempotentRoute(APIRoute):
    """A route whose endpoint answers once for each idempotency key, if it depends on :func:`idempotent`."""

    default: ClassVar[Idempotent | None] = None
    _marks: tuple[Mark, ...] = ()  # one for each router that the route is included in

    def __init__(self, path: str, endpoint: Callable[..., Any], **settings: Any) -> None:
        super().__init__(path, endpoint, **settings)
        self.declared = [one.call for one in dependencies(self.dependant) if isinstance(one.call, Idempotent)]
        self._guarded: AsgiIdempotency | None = None
        self._caller: Caller | None = None
        declaration = self.declared[-1] if self.declared else self.default
        if declaration is None:
            return
        own = declaration.rules(self.path_format)
        for route in own.routes:
            if not route.methods.isdisjoint(self.methods or ()):
                self._guarded = declaration.guard(self._carry_out, rules=own)
                self._caller = Caller.of(own)
                self.openapi_extra = _describe(self, own, route)
                warn_of_late_ends(self)
                break

    @property
    def is_guarded(self) -> bool:
        """Whether the rules cover any of its methods."""
        return self._guarded is not None

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request; FastAPI calls this."""
        if self._guarded is None:
            await super().handle(scope, receive, send)
            return
        if self._caller is not None:
            pair = await self._caller.find(scope, receive, send)
            if pair is None:
                return
            scope, receive = pair
        outer = innermost()
        if outer is not None and outer is not _BEGUN.get():
            receive, held = await self._is_held(outer, scope, receive)
            if held:
                await self._handle_marked(scope, receive, send)
                return
        await self._guarded(scope, receive, send)

    async def _is_held(self, outer: HeldClaim, scope: Scope, receive: Receive) -> tuple[Receive, bool]:
        """Return the ``receive`` to use next, and whether the middleware holds the key of this request."""
        assert self._guarded is not None
        guarded = self._guarded._guarded  # noqa: SLF001 - the shells are part of the house
        stage: PendingRequest | PassedRequest | KeyedRequest | Answer | None = guarded.rules.begin(request_of(scope))
        if isinstance(stage, PendingRequest):
            body, stage = await read(guarded.rules, stage, receive)
            receive = _disconnect if body is None else prepend([whole(body)], receive)
        if not isinstance(stage, KeyedRequest):
            return receive, False
        key = guarded.key(stage)
        return receive, outer.store is guarded.guard.store and outer.record.key == key

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a handler that notes when the endpoint begins; FastAPI calls this."""
        handler = super().get_route_handler()
        self._marks = (*self._marks, mark_begin(handler))
        return handler

    async def _carry_out(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = _BEGUN.set(innermost())
        try:
            await self._handle_marked(scope, receive, send)
        finally:
            _BEGUN.reset(token)

    async def _handle_marked(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request whose key is held, and note in its scope whether the endpoint began."""
        if all(mark.holds for mark in self._marks):
            scope[BEGAN] = False
        token = ENDPOINT.set(scope)
        try:
            await super().handle(scope, receive, send)
        finally:
            ENDPOINT.reset(token)


def _describe(route: APIRoute, rules: Rules, own: Route) -> dict[str, Any]:
    """Return what we add to FastAPI's own OpenAPI of a route."""
    extra: dict[str, Any] = {**(route.openapi_extra or {})}
    responses = {**extra.get("responses", {})}
    responses.setdefault(str(route.status_code or 200), {})
    for status, declared in route.responses.items():
        responses.setdefault(str(status), {}).setdefault("description", declared.get("description", ""))
    if route.body_field is not None:
        responses.setdefault("422", {}).setdefault("description", "Validation Error")
    extra |= {"parameters": [*extra.get("parameters", [])], "responses": responses}
    openapi.describe(extra, rules, own)
    return extra


async def _disconnect() -> Message:
    """Tell the receiver that the sender of a request has left."""
    return {"type": DISCONNECT}


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that does nothing, to check options with."""
