"""What each middleware does where a retry is dangerous, tried out: it is not the same work that is being timed."""

import asyncio
from typing import Any

from idemkit import HttpConfig, IdempotencyMiddleware, InMemoryBackend

from http_calls import ask
from http_peers import ANSWER, BODY, HEADER, HEADERS, IDEMKIT, PEERS, App, Message, Receive, Send, caller, guarded
from measure import table
from onceward import Once
from onceward.web import AsgiIdempotency, Rules, Scope

LEASE = 0.4  # seconds, of the probe of a handler that outlives it
REPLAYED = {b"idempotent-replayed", b"idempotency-replayed"}
OTHER_BODY = BODY.replace(b"12.50", b"99.00")


class Boom(Exception):
    """What the handler raises."""


class Handler:
    """An application whose runs and effects are counted.

    Args:
        status: of its answer.
        seconds: what it takes before its effect.
        raises: whether it raises instead of answering.
        streams: whether its answer comes in two parts.
    """

    def __init__(self, *, status: int = 201, seconds: float = 0, raises: bool = False, streams: bool = False) -> None:
        self.runs = self.effects = 0
        self._status, self._seconds, self._raises, self._streams = status, seconds, raises, streams

    async def __call__(self, _scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        self.runs += 1
        await receive()
        await asyncio.sleep(self._seconds)
        self.effects += 1
        if self._raises:
            raise Boom
        await send({"type": "http.response.start", "status": self._status, "headers": HEADERS})
        if self._streams:
            await send({"type": "http.response.body", "body": ANSWER[:10], "more_body": True})
        await send({"type": "http.response.body", "body": ANSWER[10:] if self._streams else ANSWER, "more_body": False})


def impatient(name: str, handler: App) -> App:
    """Return a middleware with a short lease that does not wait for requests under way, where it has such things."""
    if name == HEADER:
        return guarded(name, "memory:", handler)
    if name == IDEMKIT:
        config = HttpConfig(scope=caller, lease_ttl_seconds=LEASE, wait_timeout_seconds=0.05)
        return IdempotencyMiddleware(handler, backend=InMemoryBackend(), config=config)
    return AsgiIdempotency(handler, Once("memory:"), Rules(scope=Scope.CREDENTIAL), name="bench", lease=LEASE)


async def _sent(app: App) -> str:
    """Send the request; return what went wrong that was not the handler's doing."""
    try:
        await ask(app, "/orders", "probe")
    except Boom:
        return ""
    except Exception as error:  # the middleware's
        return f"{type(error).__name__}, then "
    return ""


async def _again(app: App, handler: Handler, **other: Any) -> str:
    runs = handler.runs
    try:
        reply = await ask(app, "/orders", "probe", **other)
    except Exception as error:  # the handler's, or the middleware's
        return "runs again" if handler.runs > runs else f"{type(error).__name__}"
    if handler.runs > runs:
        return "runs again"
    if not any(name in REPLAYED for name, _ in reply.headers):
        return f"{reply.status}"
    assert reply.body == ANSWER
    return "replayed" if any(name == b"location" for name, _ in reply.headers) else "replayed without Location"


async def _retried(name: str, handler: Handler, **other: Any) -> str:
    app = guarded(name, "memory:", handler)
    return await _sent(app) + await _again(app, handler, **other)


async def _cancelled(name: str) -> str:
    handler = Handler(seconds=0.1)
    app = impatient(name, handler)
    first = asyncio.ensure_future(_sent(app))
    await asyncio.sleep(0.02)
    first.cancel()
    await asyncio.sleep(0.12)
    cut = "" if handler.effects else "effect cut off, then "
    return cut + await _again(app, handler)


async def _outlived(name: str) -> str:
    handler = Handler(seconds=2 * LEASE)
    app = impatient(name, handler)
    first = asyncio.ensure_future(_sent(app))
    await asyncio.sleep(1.5 * LEASE)
    found = await _again(app, handler)
    await first
    return found


async def _all() -> list[tuple[str, ...]]:
    async def row(shown: str, *found: Any) -> tuple[str, ...]:
        return (shown, *(await asyncio.gather(*found)))

    return [
        await row("an equal request", *(_retried(name, Handler()) for name in PEERS)),
        await row("another body", *(_retried(name, Handler(), body=OTHER_BODY) for name in PEERS)),
        await row("another caller", *(_retried(name, Handler(), who=b"Bearer another") for name in PEERS)),
        await row("after a 503", *(_retried(name, Handler(status=503)) for name in PEERS)),
        await row("after a 404", *(_retried(name, Handler(status=404)) for name in PEERS)),
        await row("after an exception", *(_retried(name, Handler(raises=True)) for name in PEERS)),
        await row("after an answer in two parts", *(_retried(name, Handler(streams=True)) for name in PEERS)),
        await row("the server had cancelled the first", *(_cancelled(name) for name in PEERS)),
        await row("the first outlives its lease", *(_outlived(name) for name in PEERS)),
    ]


def probes() -> None:
    """Print the table."""
    table("what a second request with the same key gets, ledger in memory", ["", *PEERS], asyncio.run(_all()))
