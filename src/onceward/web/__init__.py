"""Requests over HTTP that take effect once, although clients send them again: the Idempotency-Key header.

``rules.py`` decides what a request asks for and what it is answered, without I/O and without any framework;
``exchange.py`` is one guarded request, for the shells that connect it to a host. Each shell is loaded when it is first
asked for.
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
