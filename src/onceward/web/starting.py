"""Reports wrong options of ASGI middleware that a framework makes only when the server starts.

Starlette and FastAPI make their middleware at the first message, which is the lifespan's. On an exception there, uvicorn
assumes an application without a lifespan, starts, and answers each request with 500. So the error is kept, and the lifespan
is told that the start failed.
"""

import sys
from typing import Final

from onceward.web.asgi_messages import Receive, Scope, Send

_MAKER: Final = "build_middleware_stack"  # of Starlette's and FastAPI's applications
_NEAR: Final = 4  # frames from here to it, with subclasses between


def built_late() -> bool:
    """Return whether a framework is making the middleware after the server has started."""
    frame = sys._getframe(1)  # as inspect does, which takes 10 ms to load
    for _ in range(_NEAR):
        if frame.f_code.co_name == _MAKER:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


async def refuse_start(error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
    """Tell the server's lifespan that the start failed. Always raises ``error``, as frameworks do."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.failed", "message": f"onceward: {error}"})
    raise error
