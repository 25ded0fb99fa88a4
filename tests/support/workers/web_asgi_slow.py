"""Applications for test_web_servers_asgi.py: the example on a slow network, one that sleeps, and one that streams."""

import asyncio
import os
import random

import payments_fastapi
from onceward import Once
from onceward.web import AsgiIdempotency, Rules, Scope

once = Once(os.environ["LEDGER"], lease=float(os.environ.get("LEASE", "30")))


async def app(scope, receive, send):
    """Answer as the example does, a moment later, so that a kill may hit what is recorded and not yet sent."""

    async def send_late(message):
        await asyncio.sleep(random.random() * 0.1)
        await send(message)

    await payments_fastapi.app(scope, receive, send_late if scope["type"] == "http" else send)


async def _asleep(scope, receive, send):
    assert scope["type"] == "http"  # which says that it has no lifespan
    if scope["method"] == "POST":
        await asyncio.sleep(600)


async def _streaming(scope, receive, send):
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    for number in range(5):
        await send({"type": "http.response.body", "body": b"line %d\n" % number, "more_body": True})
        await asyncio.sleep(0.2)
    await send({"type": "http.response.body"})


rules = Rules(scope=Scope.EVERYBODY)
asleep = AsgiIdempotency(_asleep, once, rules, name="http")
streaming = AsgiIdempotency(_streaming, once, rules, name="http")
