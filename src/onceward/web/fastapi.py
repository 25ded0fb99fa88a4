"""FastAPI: endpoints that take effect once for each idempotency key, and their OpenAPI.

For all endpoints of a router::

    payments = APIRouter(route_class=idempotent_route(once, wait=5))

    @payments.post("/payments", status_code=201)
    async def pay(payment: Payment, claim: Annotated[Claim, Depends(current)]) -> Receipt: ...

The route class is necessary: a dependency never sees the response, and cannot hold it back until it is recorded. For a whole
application, add :class:`onceward.web.AsgiIdempotency`.
"""

from collections.abc import Callable, Coroutine, Sequence
from copy import copy
from functools import partial
from typing import Any, ClassVar, Unpack

try:
    from fastapi import FastAPI, routing
except ModuleNotFoundError as error:
    raise ImportError("onceward.web.fastapi needs fastapi, which is not installed: pip install fastapi") from error
from fastapi.requests import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.routing import Route as StarletteRoute

from onceward.claim.claim import Claim
from onceward.claim.held import innermost
from onceward.http.answer import Answer
from onceward.http.route import Route, WebOptions
from onceward.http.rules import Rules, endpoint_rules
from onceward.once import Once, check_once
from onceward.web.asgi import AsgiIdempotency
from onceward.web.asgi_began import BEGAN
from onceward.web.asgi_messages import Receive, Scope, Send, lines_of
from onceward.web.fastapi_endpoints import ENDPOINT, Caller, Mark, dependency, mark_begin, warn_of_late_ends

__all__ = [
    "answer",
    "claim_or_none",
    "dependency",
    "idempotent_route",
    "unguarded",
]


def idempotent_route(
    once: Once,
    rules: Rules | None = None,
    **options: Unpack[WebOptions],
) -> type[APIRoute]:
    """Return a class of routes, for ``APIRouter(route_class=...)``, whose endpoints answer once for each idempotency key.

    OpenAPI documents the key. The class guards endpoints whose methods the rules cover: POST and
    PATCH by default. For endpoints with options of their own, make another router. A router included in this one
    has its own route class: see :func:`unguarded`. Depend on ``onceward.current`` for the claim, or on :func:`claim_or_none` if
    the key is not required.

    Args:
        once: as for :class:`onceward.web.AsgiIdempotency`.
        rules: as there; routes have no path, because the endpoint has one: ``Rules(Route(required=False), scope=...)``.
        **options: as there.

    Raises:
        TypeError, ValueError: an option is not valid.

    Warns:
        UserWarning: from the class: a dependency of an endpoint ends after the answer, which is too late for a commit.
    """
    check_once(once, "idempotent_route({})")
    own, make = endpoint_rules(rules), partial(AsgiIdempotency, once=once, **options)
    make(_nothing, rules=own)  # to raise for a wrong option now

    class OwnRoute(GuardedRoute):
        """A route with these options."""

        rules, guard = own, make

    return OwnRoute


async def claim_or_none() -> Claim | None:
    """Return the claim of the request, or None if it passed without a key that is not required.

    A dependency: ``claim: Annotated[Claim | None, Depends(claim_or_none)]``.
    """
    return innermost()


def answer(response: Response) -> Answer:
    """Return a response as an answer, to complete a claim with its effect. It must not be a streaming response."""
    return Answer(response.status_code, lines_of(response.raw_headers), bytes(response.body))


def unguarded(app: FastAPI, methods: Sequence[str] = ("POST", "PATCH")) -> list[str]:
    """Return the endpoints of an application that onceward does not guard, such as ``POST /orders/{order}``.

    Use it in a test: ``assert unguarded(app) == []``. A router included in a guarded one is not guarded, and nothing else reports
    that. Endpoints whose key is not required are not returned.

    Args:
        app: the application, with all its routers and middleware. A mounted application is not looked at.
        methods: those of the endpoints that must be guarded.
    """
    ours = [one for one in app.user_middleware if isinstance(one.cls, type) and issubclass(one.cls, AsgiIdempotency)]
    around = [rules for one in ours for rules in (*one.args, *one.kwargs.values()) if isinstance(rules, Rules)]
    in_context: Any = getattr(routing, "iter_route_contexts", iter)  # newer versions include routers on request
    routes = [(route, getattr(route, "original_route", route)) for route in in_context(app.routes)]
    return sorted(
        f"{method} {route.path_format}"
        for route, original in routes
        if isinstance(original, StarletteRoute) and not getattr(original, "is_guarded", False)
        for method in set(route.methods or methods).intersection(methods)  # None is any method
        if all(rules.route(method, route.path_format) is None for rules in around)
    )


class GuardedRoute(APIRoute):
    """A route whose endpoint answers once for each idempotency key: see :func:`idempotent_route`.

    Attributes:
        rules: those of the endpoint's methods.
        guard: makes the guard around an application.
    """

    rules: ClassVar[Rules]
    guard: ClassVar[Callable[..., AsgiIdempotency]]
    _marks: tuple[Mark, ...] = ()  # one for each router that the route is included in

    def __init__(self, path: str, endpoint: Callable[..., Any], **settings: Any) -> None:
        super().__init__(path, endpoint, **settings)
        self._guarded: AsgiIdempotency | None = None
        own = copy(self.rules)
        own.routes = tuple(map(copy, own.routes))
        for route in own.routes:
            route.path = self.path_format  # for metrics; the route still matches every path
        for route in own.routes:
            if not route.methods.isdisjoint(self.methods or ()):
                self._guarded = self.guard(self._carry_out, rules=own)
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
    if own.read is None and not any(one["in"] == "header" and one["name"].lower() == own.header for one in parameters):
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
