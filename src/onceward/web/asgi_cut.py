"""What frameworks inside say of an answer without a message: that it is torn, or that the request was not valid.

Starlette's ``BaseHTTPMiddleware`` sends the last message of an answer itself, also when the endpoint has failed in the middle
of it, and raises only after that. Frameworks send the answer to an exception while they handle it.
"""

import sys
from types import FrameType, TracebackType
from typing import Final

from onceward.web.asgi_messages import Message, Scope

BEGAN: Final = "onceward.began"  # in ASGI's scope: whether the endpoint began, where a route of ours knows it
# What a router answers by itself. Of other answers nobody can be sure: middleware inside may route a copy of the scope.
UNROUTED: Final = frozenset({404, 405})
_FAR: Final = 60  # frames between the server's send and the middleware, at most
# By (module, name): the function of the framework's that raises this before it calls the endpoint, as (module, prefix, name).
_INVALID: Final = {
    ("fastapi.exceptions", "RequestValidationError"): ("fastapi.routing", "fastapi.", "app"),
    ("litestar.exceptions.http_exceptions", "ValidationException"): (
        "litestar.routes.http",
        "litestar.",
        "_call_handler_function",
    ),
}


def is_torn(last: Message, frame: FrameType | None) -> bool:
    """Tell whether a ``BaseHTTPMiddleware`` has ended an answer of which the endpoint has not sent the end.

    Args:
        last: the last message.
        frame: that of who was given it to send.
    """
    base = sys.modules.get("starlette.middleware.base")
    if base is None or last.get("body"):
        return False  # it ends what it passes on with an empty message
    code = base.BaseHTTPMiddleware.__call__.__code__
    for _ in range(_FAR):
        if frame is None:
            return False
        if frame.f_code is code and frame.f_locals.get("app_exc") is not None:
            return True
        frame = frame.f_back
    return False


def is_invalid(error: BaseException | None) -> bool:
    """Tell whether an exception that is being handled says that the request is not valid, so that its endpoint has not begun.

    An endpoint may raise the same exception, after its effect. So only what the framework itself has raised counts.
    """
    if error is None:
        return False
    for kind in type(error).__mro__:
        place = _INVALID.get((kind.__module__, kind.__name__))
        if place is not None:
            return _is_raised_within(error.__traceback__, *place)
    return False


def _is_raised_within(trace: TracebackType | None, module: str, prefix: str, function: str) -> bool:
    """Tell whether an exception was raised in a function, and all that this called on the way is the framework's own."""
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
    """Tell whether an application of Starlette's has found no endpoint for a request."""
    applications = sys.modules.get("starlette.applications")
    if applications is None or "endpoint" in scope or not isinstance(app := scope.get("app"), applications.Starlette):
        return False
    if "router" not in scope:
        return False  # middleware inside has answered, or handed on a copy, in which there may be an endpoint
    default = app.router.default  # an application's own is an endpoint
    return bool(default == app.router.not_found)
