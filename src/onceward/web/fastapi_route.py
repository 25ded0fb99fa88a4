"""FastAPI's routes whose endpoints answer once for each idempotency key, and the dependency that says how."""

from collections.abc import Callable, Coroutine
from copy import copy
from functools import partial
from typing import Any, ClassVar

from fastapi.requests import HTTPConnection, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute

from onceward.claim.claim import Claim
from onceward.claim.held import innermost
from onceward.http.route import Route, WebOptions
from onceward.http.rules import Rules, endpoint_rules
from onceward.once import Once
from onceward.web.asgi import AsgiIdempotency
from onceward.web.asgi_began import BEGAN
from onceward.web.asgi_messages import (
    Receive,
    Scope,
    Send,
)
from onceward.web.fastapi_endpoints import ENDPOINT, Caller, Mark, dependencies, mark_begin, warn_of_late_ends


class Idempotent:
    """What :func:`idempotent` returns: a dependency that gives the claim, and tells the route how to guard."""

    def __init__(self, once: Once, rules: Rules | None, options: WebOptions) -> None:
        self._rules = endpoint_rules(rules)
        self.guard = partial(AsgiIdempotency, once=once, **options)
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
        """Handle a request; FastAPI calls this. A request that a middleware guards under the same key is not guarded again."""
        if self._guarded is None:
            await super().handle(scope, receive, send)
            return
        if self._caller is not None:
            pair = await self._caller.find(scope, receive, send)
            if pair is None:
                return
            scope, receive = pair
        await self._guarded(scope, receive, send)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return a handler that notes when the endpoint begins; FastAPI calls this."""
        handler = super().get_route_handler()
        self._marks = (*self._marks, mark_begin(handler))
        return handler

    async def _carry_out(self, scope: Scope, receive: Receive, send: Send) -> None:
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
    parameters = extra.get("parameters", [])
    if own.read is None and not any(
        one.get("in") == "header" and one.get("name", "").lower() == own.header for one in parameters
    ):
        least, most = rules.length
        key = {
            "name": own.key,
            "in": "header",
            "required": own.required,
            "description": "Names this operation. Choose a new one for each operation, such as a UUID, and send the same one with "
            f"each retry. {least} to {most} characters in quotes, or without quotes if it has no comma, semicolon, backslash or "
            "space. See also draft-ietf-httpapi-idempotency-key-header.",
            "schema": {"type": "string"},
            "example": '"8e03978e-40d5-43e8-bc93-6894a57f9324"',
        }
        extra["parameters"] = [*parameters, key]
    return extra


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that does nothing, to check options with."""
