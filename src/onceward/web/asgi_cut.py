"""What frameworks inside say of an answer without a message: that it is torn, or that the request was not valid.

Starlette's ``BaseHTTPMiddleware`` sends the last message of an answer itself, also when the endpoint has failed in the middle
of it, and raises only after that. Frameworks send the answer to an exception while they handle it.
"""

import sys
from types import FrameType
from typing import Final

from onceward.web.asgi_messages import Message, Scope

BEGAN: Final = "onceward.began"  # in ASGI's scope: whether the endpoint began, where a route of ours knows it
# What a router answers by itself. Of other answers nobody can be sure: middleware inside may route a copy of the scope.
UNROUTED: Final = frozenset({404, 405})
_FAR: Final = 60  # frames between the server's send and the middleware, at most
# As (module, name): the framework raises these before it calls the endpoint.
_INVALID: Final = frozenset(
    {
        ("fastapi.exceptions", "RequestValidationError"),
        ("litestar.exceptions.http_exceptions", "ValidationException"),
    }
)


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
    """Tell whether an exception that is being handled says that the request is not valid, so that its endpoint has not begun."""
    return error is not None and any((kind.__module__, kind.__name__) in _INVALID for kind in type(error).__mro__)


def is_unrouted(scope: Scope) -> bool:
    """Tell whether an application of Starlette's has found no endpoint for a request."""
    applications = sys.modules.get("starlette.applications")
    if applications is None or "endpoint" in scope or not isinstance(app := scope.get("app"), applications.Starlette):
        return False
    default = app.router.default  # an application's own is an endpoint
    return bool(default == app.router.not_found)
