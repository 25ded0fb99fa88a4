"""The Idempotency-Key header for ASGI applications: Starlette, FastAPI, Litestar, Quart, Django."""

import asyncio
from typing import TYPE_CHECKING, Unpack

from onceward.claim.called import is_same_ledger, is_within
from onceward.claim.held import HeldClaim
from onceward.http.answer import Answer
from onceward.http.guarded import Guarded
from onceward.http.held import HeldRequest, claim_async
from onceward.http.route import KeyedRequest, PendingRequest, WebOptions
from onceward.http.rules import Rules
from onceward.http.scope import Scope as Whose
from onceward.once import Once
from onceward.web.asgi_began import HELD
from onceward.web.asgi_handling import AsgiHandling
from onceward.web.asgi_messages import (
    Application,
    AsgiRequest,
    Message,
    Receive,
    Scope,
    Send,
    body_of,
    place_of,
    prepend,
    reply,
    whole,
)

if TYPE_CHECKING:
    from onceward.outbox.relay import Relay


class AsgiIdempotency:
    """Middleware that makes an application answer once for each idempotency key.

    In Starlette and FastAPI: ``app.add_middleware(AsgiIdempotency, once=once, rules=Rules(...), wait=5)``. Add authentication
    (for ``scope=``), CORS and logging after it, so that they run around it.

    In the application, ``onceward.current()`` returns the claim. A handler can complete it together with its effect, with the
    :class:`onceward.web.Answer` that it is going to give.

    Args:
        app: an ASGI 3 application, under asyncio.
        once: the ledger and the defaults of the policy.
        rules: which requests carry a key, whose it is, and how they are answered. ``Rules(scope=...)`` covers all POST and PATCH.
        relay: whether to send messages that other processes have left, too, from the lifespan's start to its end
            (docs/reference/outbox.md).
        **options: see :class:`onceward.web.WebOptions`; ``name`` is required unless ``once`` has one.

    Raises:
        TypeError, ValueError: an option is not valid.
    """

    def __init__(
        self,
        app: Application,
        once: Once,
        rules: Rules | None = None,
        *,
        relay: bool = True,
        **options: Unpack[WebOptions],
    ) -> None:
        self._app = app
        self._relays = once if relay else None
        self._guarded = Guarded(once, rules, options, "AsgiIdempotency(app, once={})")
        if self._guarded.rules.scope is Whose.HOST:
            raise ValueError("scope=Scope.HOST: ASGI servers authenticate nobody. Choose another scope")
        self._methods = self._guarded.methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection: HTTP requests that the rules cover; all else passes unchanged."""
        if scope["type"] != "http" or (method := scope["method"].upper()) not in self._methods:
            await (self._live if scope["type"] == "lifespan" else self._app)(scope, receive, send)
            return
        rules = self._guarded.rules
        path, root = place_of(scope)
        if (route := rules.route(method, path)) is None:
            await self._app(scope, receive, send)
            return
        body: bytes | None = None
        stage: PendingRequest | KeyedRequest | HeldRequest | Answer | None = rules.begin(
            AsgiRequest(scope, method, path, root), route
        )
        if isinstance(stage, PendingRequest):
            if (body := await body_of(receive, rules.max_request)) is None:
                stage = rules.unreadable("its sender has left")  # middleware around this then gets an answer, too
            elif stage.is_long(body):
                stage = await asyncio.to_thread(rules.ask, stage, body)
            else:
                stage = rules.ask(stage, body)
        if isinstance(stage, KeyedRequest):
            held: HeldClaim | None = scope.get(HELD)
            same = held is not None and is_same_ledger(held.store, self._guarded.guard.store) and is_within(held)
            if held is not None and same and held.record.key == self._guarded.key(stage):
                stage = None
            else:
                stage = await claim_async(self._guarded, stage)
        if isinstance(stage, HeldRequest):
            assert body is not None  # it has a key
            await AsgiHandling(stage, scope, body, receive, send).carry_out(self._app)
        elif isinstance(stage, Answer):
            await reply(send, stage)
        else:
            await self._app(scope, receive if body is None else prepend([whole(body)], receive), send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the lifespan on. Run a relay from the application's start to its end."""
        relay: Relay | None = None

        async def starting(message: Message) -> None:
            nonlocal relay
            if message["type"] == "lifespan.startup.complete" and self._relays is not None and relay is None:
                from onceward.outbox.relay import relay_beside  # only servers with a lifespan pay for it

                relay = relay_beside(self._relays, self._guarded.guard.policy.seal)
            await send(message)

        try:
            await self._app(scope, receive, starting)
        finally:
            if relay is not None:
                await asyncio.to_thread(relay.stop)
