"""HTTP clients whose requests take effect once: each has an Idempotency-Key that stays the same when it is sent again.

    client = httpx.Client(transport=HttpxTransport())
    client.post("https://billing.example/charges", json={"amount": 10})

Within a guarded handler the key is derived from the claim, so that it is also the same on the next attempt, on another machine.
Elsewhere it is random. A header that you give is left as it is. ``rules.py`` says when a request is sent again; the other
modules are for a client each.
"""

from typing import TYPE_CHECKING

from onceward.clients.rules import SendAgain
from onceward.lazily import lazily

if TYPE_CHECKING:
    from onceward.clients.aiohttp import AiohttpIdempotency
    from onceward.clients.httpx import AsyncHttpxTransport, HttpxTransport
    from onceward.clients.requests import RequestsAdapter

__all__ = ["AiohttpIdempotency", "AsyncHttpxTransport", "HttpxTransport", "RequestsAdapter", "SendAgain"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        ".aiohttp": ("AiohttpIdempotency",),
        ".httpx": ("AsyncHttpxTransport", "HttpxTransport"),
        ".requests": ("RequestsAdapter",),
    },
)
