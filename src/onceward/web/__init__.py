"""HTTP requests that take effect once, although clients send them again: the Idempotency-Key header.

The rules are in ``onceward.http``, without I/O or a framework. Each module here connects them to a host. The two classes of
middleware load on first use.
"""

from typing import TYPE_CHECKING

from onceward.http.answer import Answer
from onceward.http.request import Request
from onceward.http.route import Route
from onceward.http.rules import Rules
from onceward.http.scope import Scope

if TYPE_CHECKING:
    from onceward.web.asgi import AsgiIdempotency
    from onceward.web.wsgi import WsgiIdempotency

__all__ = ["Answer", "AsgiIdempotency", "Request", "Route", "Rules", "Scope", "WsgiIdempotency"]

_HOMES = {"AsgiIdempotency": "asgi", "WsgiIdempotency": "wsgi"}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
