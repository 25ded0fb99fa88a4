"""FastAPI: endpoints that take effect once for each idempotency key, and OpenAPI that says so.

    payments = APIRouter(route_class=idempotent_route(once, wait=5))

    @payments.post("/payments", status_code=201)
    async def pay(payment: Payment, claim: Annotated[Claim, Depends(current)]) -> Receipt: ...

A dependency could not do it, for it never sees the response. Where a whole application is meant, add
:class:`onceward.web.AsgiIdempotency` to it and call :func:`document`.
"""

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any, Unpack

from fastapi import FastAPI
from fastapi.responses import Response
from fastapi.routing import APIRoute

from onceward.core.policy import Options
from onceward.web import openapi
from onceward.web.answer import Answer
from onceward.web.asgi import AsgiIdempotency
from onceward.web.asgi_messages import Receive, Scope, Send, lines_of
from onceward.web.endpoint import endpoint_rules
from onceward.web.route import Route
from onceward.web.rules import Rules

if TYPE_CHECKING:
    from onceward.once import Once


def idempotent_route(
    once: "Once",
    rules: Rules | None = None,
    *,
    name: str | None = None,
    wait: float | None = None,
    **options: Unpack[Options],
) -> type[APIRoute]:
    """Return a class of routes, for ``APIRouter(route_class=...)``, whose endpoints answer once for each idempotency key.

    The key is documented in OpenAPI, with the answers that are due to it. Of a router's endpoints those count whose methods
    the rules cover: POST and PATCH by default. ``onceward.current`` is a dependency that gives the claim.

    Args:
        once: as for :class:`onceward.web.AsgiIdempotency`.
        rules: as there; its routes have no path, for that is the endpoint's: ``Rules(Route(required=False))``.
        name: as there.
        wait: as there.
        **options: as there.

    Raises:
        TypeError, ValueError: an option is not valid.
    """
    made = endpoint_rules(rules)

    def guarded(app: Callable[[Scope, Receive, Send], Any], mine: Rules) -> AsgiIdempotency:
        return AsgiIdempotency(app, once, mine, name=name, wait=wait, **options)

    guarded(_nothing, made)  # so that a wrong option is told now

    class IdempotentRoute(APIRoute):
        """A route whose endpoint answers once for each idempotency key."""

        def __init__(self, path: str, endpoint: Callable[..., Any], **settings: Any) -> None:
            super().__init__(path, endpoint, **settings)
            own = copy(made)
            own.routes = tuple(_Chosen(self.path_format, route) for route in made.routes)
            self._guarded = guarded(super().handle, own)
            for route in own.routes:
                if not route.methods.isdisjoint(self.methods or ()):
                    self.openapi_extra = _described(self, own, route)
                    break

        async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            await self._guarded(scope, receive, send)

    return IdempotentRoute


def document(app: FastAPI, rules: Rules) -> None:
    """Have the OpenAPI of an application say which of its operations take an idempotency key, and what that may lead to.

    For applications with :class:`onceward.web.AsgiIdempotency`; endpoints of :func:`idempotent_route` say it by themselves.

    Args:
        app: the application; its ``openapi`` is replaced.
        rules: those that the middleware was given.
    """
    generate = app.openapi

    def documented() -> dict[str, Any]:
        return openapi.document(generate(), rules)

    app.openapi = documented  # type: ignore[method-assign]  # as FastAPI's documentation has it


def answer(response: Response) -> Answer:
    """Return a response, which is not a streaming one, as the answer to complete a claim with, together with its effect."""
    return Answer(response.status_code, lines_of(response.raw_headers), bytes(response.body))


class _Chosen(Route):
    """A route of an endpoint that FastAPI has chosen already; its path is for metrics only."""

    def __init__(self, path: str, route: Route) -> None:
        super().__init__(methods=sorted(route.methods), required=route.required, key=route.key)
        self.path = path


def _described(route: APIRoute, rules: Rules, own: Route) -> dict[str, Any]:
    """Return what OpenAPI says of a route besides what FastAPI finds out."""
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


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Be an application, for options to be checked with."""
