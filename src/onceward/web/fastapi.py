"""FastAPI: endpoints that take effect once for each idempotency key, and their OpenAPI.

For all endpoints of a router::

    payments = APIRouter(route_class=idempotent_route(once, wait=5))

    @payments.post("/payments", status_code=201)
    async def pay(payment: Payment, claim: Annotated[Claim, Depends(current)]) -> Receipt: ...

For single endpoints, with their own options::

    payments = APIRouter(route_class=IdempotentRoute)

    @payments.post("/payments", status_code=201)
    async def pay(payment: Payment, claim: Annotated[Claim | None, Depends(idempotent(once, wait=5))]) -> Receipt: ...

The route class is necessary: a dependency never sees the response, and cannot hold it back until it is recorded. For a whole
application, add :class:`onceward.web.AsgiIdempotency`.
"""

from collections.abc import Sequence
from typing import Any, Unpack

try:
    from fastapi import FastAPI, routing
except ModuleNotFoundError as error:
    raise ImportError("onceward.web.fastapi needs fastapi, which is not installed: pip install fastapi") from error
from fastapi.responses import Response
from starlette.routing import Route

from onceward.claim.claim import Claim
from onceward.claim.held import innermost
from onceward.http.answer import Answer
from onceward.http.route import WebOptions
from onceward.http.rules import Rules
from onceward.once import Once, check_once
from onceward.web.asgi import AsgiIdempotency
from onceward.web.asgi_messages import lines_of
from onceward.web.fastapi_endpoints import dependency
from onceward.web.fastapi_route import Idempotent, IdempotentRoute

__all__ = [
    "IdempotentRoute",
    "answer",
    "claim_or_none",
    "dependency",
    "idempotent",
    "idempotent_route",
    "unguarded",
]


def idempotent(
    once: Once,
    rules: Rules | None = None,
    **options: Unpack[WebOptions],
) -> Idempotent:
    """Return a dependency that makes an endpoint of an :class:`IdempotentRoute` answer once for each idempotency key.

    ``claim: Annotated[Claim | None, Depends(idempotent(once, wait=5))]`` also gives the endpoint its claim;
    ``dependencies=[Depends(idempotent(once))]`` guards an endpoint, or all of a router's. The one nearest to the endpoint counts.

    Args:
        once: as for :class:`onceward.web.AsgiIdempotency`.
        rules: as there; routes have no path, because the endpoint has one: ``Rules(Route(required=False), scope=...)``.
        **options: as there.

    Returns:
        A dependency that gives the claim, or None for a request that passed unguarded. If the route is not of that class, it
        guards nothing and raises RuntimeError before the endpoint runs.

    Raises:
        TypeError, ValueError: an option is not valid.
    """
    check_once(once, "Depends(idempotent({}))")
    return Idempotent(once, rules, options)


def idempotent_route(
    once: Once,
    rules: Rules | None = None,
    **options: Unpack[WebOptions],
) -> type[IdempotentRoute]:
    """Return a class of routes, for ``APIRouter(route_class=...)``, whose endpoints answer once for each idempotency key.

    OpenAPI documents the key. The class guards endpoints whose methods the rules cover: POST and
    PATCH by default. An endpoint that depends on an :func:`idempotent` has that one's options. A router included in this one
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

    class GuardedRoute(IdempotentRoute):
        """A route whose endpoint answers once for each idempotency key."""

        default = Idempotent(once, rules, options)

    return GuardedRoute


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
        if isinstance(original, Route) and not getattr(original, "is_guarded", False)
        for method in set(route.methods or methods).intersection(methods)  # None is any method
        if all(rules.route(method, route.path_format) is None for rules in around)
    )
