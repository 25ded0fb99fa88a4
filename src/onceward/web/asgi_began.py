"""Whether the endpoint of an ASGI application began, as far as that shows, and the names in ASGI's scope that tell it."""

import sys
from types import FrameType, TracebackType
from typing import Final

from onceward.web.asgi_messages import Scope

BEGAN: Final = (
    "onceward.began"  # in ASGI's scope of a request whose key is held: whether the endpoint began; None if unknown
)
# In ASGI's scope of a request whose key is held: the store, the key and the claim. Who sends a copy of the scope sends another key.
HELD: Final = "onceward.held"
# In ASGI's scope while the endpoint may have had its effect and nobody knows its outcome: the key then stays claimed. A proxy sets it.
MAY_HAVE_RUN: Final = "onceward.may_have_run"
# A router answers these itself. Other statuses prove nothing: inner middleware may route a copy of the scope.
UNROUTED: Final = frozenset({404, 405})
_FAR: Final = 60  # frames between the server's send and the middleware, at most
# Exception (module, name) → the framework's function (module, prefix, name) that raises it before it calls the endpoint.
_INVALID: Final = {
    ("fastapi.exceptions", "RequestValidationError"): ("fastapi.routing", "fastapi.", "app"),
    ("litestar.exceptions.http_exceptions", "ValidationException"): (
        "litestar.routes.http",
        "litestar.",
        "_call_handler_function",
    ),
}


def is_by_base(frame: FrameType | None) -> bool:
    """Return whether a ``BaseHTTPMiddleware`` of Starlette sends a message in ``frame``."""
    base = sys.modules.get("starlette.middleware.base")
    for _ in range(_FAR):
        if frame is None or base is None:
            return False
        if frame.f_code is base.BaseHTTPMiddleware.__call__.__code__:
            return True
        frame = frame.f_back
    return False


def is_invalid(error: BaseException | None) -> bool:
    """Return whether the handled exception says that the request is not valid, so that its endpoint has not begun.

    An endpoint can raise the same exception after its effect. So it counts only if the framework itself raised it.
    """
    if error is None:
        return False
    for kind in type(error).__mro__:
        place = _INVALID.get((kind.__module__, kind.__name__))
        if place is not None:
            return _is_raised_within(error.__traceback__, *place)
    return False


def _is_raised_within(trace: TracebackType | None, module: str, prefix: str, function: str) -> bool:
    """Return whether an exception was raised in a function or deeper, with only the framework's own frames in between."""
    within = False
    while trace is not None:
        name, code = trace.tb_frame.f_globals.get("__name__", ""), trace.tb_frame.f_code
        if name == module and code.co_name == function:
            within = True
        elif within and not name.startswith(prefix):
            return False
        trace = trace.tb_next
    return within


def is_unrouted(scope: Scope) -> bool:
    """Return whether a Starlette application has found no endpoint for a request."""
    applications = sys.modules.get("starlette.applications")
    if applications is None or "endpoint" in scope or not isinstance(app := scope.get("app"), applications.Starlette):
        return False
    if "router" not in scope:
        return False  # inner middleware has answered, or passed on a copy that may have an endpoint
    default = app.router.default  # a custom default is an endpoint
    return bool(default == app.router.not_found)
