"""Which endpoints of a FastAPI application onceward does not guard."""

from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import FastAPI, routing
from starlette.routing import Mount

from onceward.http.rules import Rules
from onceward.web.asgi import AsgiIdempotency


def unguarded(app: FastAPI, methods: Sequence[str] = ("POST", "PATCH")) -> list[str]:
    """Return the endpoints of an application that onceward does not guard, such as ``POST /orders/{order}``.

    Use it in a test: ``assert unguarded(app) == []``. A router included in a guarded one is not guarded, and nothing else
    reports that. Endpoints whose key is not required, or whose path is exempt, are not returned.

    Args:
        app: the application, with all its routers, mounted applications and middleware.
        methods: those of the endpoints that must be guarded.
    """
    return sorted(_unguarded(app.routes, "", methods, _middleware(app, "")))


def _middleware(app: Any, base: str) -> list[tuple[str, Rules]]:
    """Return the rules of our middleware in an application, with the path where that is mounted."""
    found: list[tuple[str, Rules]] = []
    for one in getattr(app, "user_middleware", ()):
        if isinstance(one.cls, type) and issubclass(one.cls, AsgiIdempotency):
            given = [*one.args, one.kwargs.get("rules")]
            found += [(base, rules) for rules in given if isinstance(rules, Rules)][:1]
    return found


def _unguarded(
    routes: Sequence[Any], base: str, methods: Sequence[str], around: list[tuple[str, Rules]]
) -> Iterator[str]:
    in_context = getattr(routing, "iter_route_contexts", iter)  # newer versions include routers on request
    for route in in_context(routes):
        original: Any = getattr(route, "original_route", route)
        if isinstance(original, Mount):
            inner = base + route.path
            yield from _unguarded(original.routes, inner, methods, around + _middleware(original.app, inner))
        elif not getattr(original, "is_guarded", False):
            path = base + (getattr(route, "path_format", None) or "")
            for method in set(getattr(route, "methods", None) or ()).intersection(methods):
                if not any(rules.covers(method, path[len(at) :]) for at, rules in around):
                    yield f"{method} {path}"
