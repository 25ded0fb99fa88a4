"""HTTP requests that take effect once, although clients send them again: the Idempotency-Key header.

The rules are in ``onceward.http``, without I/O or a framework. Each module here connects them to a host. The two classes of
middleware load on first use.
"""

from typing import TYPE_CHECKING

from onceward.http.answer import Answer
from onceward.http.request import Request
from onceward.http.route import Route, WebOptions
from onceward.http.rules import Rules
from onceward.http.scope import Scope
from onceward.lazily import lazily

if TYPE_CHECKING:
    from onceward.web.asgi import AsgiIdempotency
    from onceward.web.wsgi import WsgiIdempotency

__all__ = ["Answer", "AsgiIdempotency", "Request", "Route", "Rules", "Scope", "WebOptions", "WsgiIdempotency"]

__getattr__, __dir__ = lazily(__name__, {".asgi": ("AsgiIdempotency",), ".wsgi": ("WsgiIdempotency",)})
