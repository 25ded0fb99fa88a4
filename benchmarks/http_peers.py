"""The application, and the middlewares around it: onceward's and those of its peers, each as its documentation has it.

All guard POST /orders and POST /slow, with a key that counts for one Authorization where the middleware knows of callers.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import quote

from idemkit import DynamoBackend, HttpConfig, IdempotencyMiddleware, InMemoryBackend
from idempotency_header_middleware import IdempotencyHeaderMiddleware
from idempotency_header_middleware.backends import MemoryBackend

from onceward import Once
from onceward.web import AsgiIdempotency, Route, Rules, Scope

BARE, OURS, HEADER, IDEMKIT = "no middleware", "onceward", "asgi-idempotency-header", "idemkit"
PEERS = (OURS, HEADER, IDEMKIT)
REGION = "eu-west-1"
TABLES = {OURS: "key", IDEMKIT: "effective_key"}  # and their key attributes
SLOW = 0.05  # seconds that POST /slow takes
BODY = b'{"item":"book","amount":"12.50","currency":"EUR","quantity":2}'
ANSWER = b'{"id":"8e03978e-40d5-43e8-bc93-6894a57f9324","status":"accepted","amount":"12.50"}'
HEADERS = [
    (b"content-type", b"application/json"),  # the one type that asgi-idempotency-header records
    (b"content-length", b"%d" % len(ANSWER)),
    (b"location", b"/orders/8e03978e-40d5-43e8-bc93-6894a57f9324"),
]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

logging.getLogger("idemkit").setLevel(logging.ERROR)  # it warns of its memory backend


async def app(scope: Message, receive: Receive, send: Send) -> None:
    """Answer any POST with 201, and GET with the CPU seconds of this process."""
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
        return
    await receive()
    if scope["method"] == "GET":
        spent = b"%.9f" % time.process_time()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(spent))]})
        await send({"type": "http.response.body", "body": spent})
        return
    if scope["path"] == "/slow":
        await asyncio.sleep(SLOW)
    await send({"type": "http.response.start", "status": 201, "headers": HEADERS})
    await send({"type": "http.response.body", "body": ANSWER})


async def _lifespan(receive: Receive, send: Send) -> None:
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})


def guarded(name: str, ledger: str, handler: App = app) -> App:
    """Return an application behind a middleware, on a ledger of its own.

    Args:
        name: one of PEERS, or BARE.
        ledger: ``memory:``, ``sqlite:`` and a URL's rest (onceward only), or the URL of DynamoDB's server (onceward, idemkit).
        handler: the application.
    """
    if name == BARE:
        return handler
    if name == HEADER:
        assert ledger == "memory:", "its other backend is Redis"
        return IdempotencyHeaderMiddleware(handler, backend=MemoryBackend())
    if name == IDEMKIT:
        return IdempotencyMiddleware(handler, backend=_idemkit(ledger), config=HttpConfig(scope=caller))
    if ledger.startswith("http:"):
        ledger = f"dynamodb://{OURS}?region={REGION}&endpoint={quote(ledger)}"
    rules = Rules(Route("/orders"), Route("/slow"), scope=Scope.CREDENTIAL)
    return AsgiIdempotency(handler, Once(ledger), rules, name="bench")


def caller(request: Any) -> str:
    """Say to idemkit whose key it is; onceward is told to take the same header's hash."""
    return request.headers.get("authorization", "anonymous")


def _idemkit(ledger: str) -> InMemoryBackend | DynamoBackend:
    if ledger == "memory:":
        return InMemoryBackend()
    return DynamoBackend(table=IDEMKIT, endpoint_url=ledger, region_name=REGION, create_table=False)
