"""Logs routes of the rules that match nothing and so guard nothing.

Known framework routes are compared at startup or at the first request. Otherwise the first uncovered request is logged.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final, NamedTuple

from onceward.http.route import Route
from onceward.http.rules import Rules
from onceward.observe.logs import logger

_PART: Final = "{}"  # any one part of a path
_REST: Final = "*"  # any parts, to the end
_SHOWN: Final = 10  # routes that a text names


class Known(NamedTuple):
    """A route of the framework."""

    path: str
    methods: Collection[str] | None  # None is any


class Coverage:
    """Logs routes of the rules that guard nothing, once."""

    def __init__(self, rules: Rules) -> None:
        self._rules, self._routes = rules, rules.routes
        # told: nothing is left to log; looked: the framework's routes were looked for
        self.told = self.looked = all(route.path == "*" for route in self._routes)

    def compare(self, known: Iterable[Known]) -> None:
        """Log routes that match none of the framework's."""
        self.told = self.looked = True
        theirs = list(known)
        for route in self._routes:
            if not any(_meet(route, one) for one in theirs):
                there = [one.path for one in theirs if one.methods is None or not route.methods.isdisjoint(one.methods)]
                logger().error(
                    "%r matches no route of the application, so it guards nothing. Correct its path, or remove it. The "
                    "application has %s",
                    route,
                    ", ".join(sorted(set(there))[:_SHOWN]) or "no routes of these methods",
                )

    def passed(self, method: str, path: str) -> None:
        """Log the first request that no route covers, where the framework's routes are not known."""
        if self.told or self._rules.covers(method, path):
            return
        self.told = True
        logger().warning(
            "%s %a is not guarded, because no route of the rules covers it: %s. Later requests like it are not logged",
            method,
            path,
            ", ".join(map(repr, self._routes[:_SHOWN])),
        )

    def look(self, find: Callable[[], Iterable[Known] | None]) -> None:
        """Compare the routes with those that ``find`` returns (None: not known). Raises nothing."""
        self.looked = True
        try:
            if (known := find()) is not None:
                self.compare(known)
        except Exception:  # frameworks differ, and that must not fail a request
            logger().exception(
                "the application's routes cannot be compared with those of the rules. Requests are guarded all the same"
            )


def known_routes(app: object) -> list[Known] | None:
    """Return the routes of a Starlette, FastAPI, Litestar, Quart or Flask application; None if they are not known."""
    app = getattr(app, "__self__", app)  # of app.wsgi_app and app.asgi_app
    url_map = getattr(app, "url_map", None)
    if callable(rules := getattr(url_map, "iter_rules", None)):
        return [Known(rule.rule, rule.methods) for rule in rules()]
    routes = getattr(app, "routes", None)
    return list(_starlettes(routes, "")) if isinstance(routes, list | tuple) else None


def djangos_routes() -> Iterator[Known]:
    """Return the routes of Django's URLconf."""
    from django.urls import get_resolver

    return _djangos(get_resolver(), "/")


def _starlettes(routes: Iterable[Any], base: str) -> Iterator[Known]:
    fastapi = sys.modules.get("fastapi.routing")  # newer versions include routers on request
    in_context: Callable[[Any], Iterable[Any]] = getattr(fastapi, "iter_route_contexts", iter)
    for route in in_context(routes):
        original = getattr(route, "original_route", route)
        inner = getattr(original, "routes", None)
        path = getattr(route, "path_format", None) or getattr(route, "path", None)
        if type(original).__name__ in {"Mount", "Host"}:  # a mounted application may have any routes
            at = base + getattr(original, "path", "")
            yield from _starlettes(inner, at) if inner else [Known(at + "/{rest:path}", None)]
        elif isinstance(path, str):
            # Starlette's path format looks the same for one part and for several.
            full = getattr(original, "path", path)
            several = ":path}" in full or type(original).__name__ == "ASGIRoute"  # what Litestar mounts
            yield Known(base + path + ("/{rest:path}" if several else ""), getattr(route, "methods", None))
        else:
            yield Known(base + "/{rest:path}", None)


def _djangos(resolver: Any, base: str) -> Iterator[Known]:
    for one in resolver.url_patterns:
        route = getattr(one.pattern, "_route", None)
        if route is None:  # a regular expression
            yield Known(base + "{rest:path}", None)
        elif hasattr(one, "url_patterns"):
            yield from _djangos(one, base + str(route))
        else:
            yield Known(base + str(route), None)


def _meet(route: Route, known: Known) -> bool:
    """Return whether one request can match both."""
    if known.methods is not None and route.methods.isdisjoint(known.methods):
        return False
    ours, theirs = _tokens(route.path), _tokens(known.path)
    for our, their in zip(ours, theirs, strict=False):
        if _REST in {our, their}:
            return True
        if our != their and _PART not in {our, their}:
            return False
    longer = ours[len(theirs) :] or theirs[len(ours) :]
    return not longer or longer[0] == _REST


def _tokens(path: str) -> list[str]:
    return [_token(part) for part in path.split("/") if part]


def _token(part: str) -> str:
    if "*" in part or ":path}" in part or part.startswith("<path:"):
        return _REST
    return _PART if "{" in part or "<" in part else part
