"""HTTP clients whose requests take effect once: each has an Idempotency-Key that stays the same when it is sent again.

    client = httpx.Client(transport=HttpxTransport())
    client.post("https://billing.example/charges", json={"amount": 10})

Within a guarded handler the key is derived from the claim, so that it is also the same on the next attempt, on another machine.
Elsewhere it is random. A header that you give is left as it is. ``rules.py`` says when a request is sent again; the other
modules are for a client each.
"""

from typing import TYPE_CHECKING

from onceward.clients.rules import SendAgain

if TYPE_CHECKING:
    from onceward.clients.aiohttp import AiohttpIdempotency
    from onceward.clients.httpx import AsyncHttpxTransport, HttpxTransport
    from onceward.clients.requests import RequestsAdapter

__all__ = ["AiohttpIdempotency", "AsyncHttpxTransport", "HttpxTransport", "RequestsAdapter", "SendAgain"]

_HOMES = {
    "AiohttpIdempotency": "aiohttp",
    "AsyncHttpxTransport": "httpx",
    "HttpxTransport": "httpx",
    "RequestsAdapter": "requests",
}


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
