"""The proxy as an ASGI application: what it refuses and answers itself, and the middleware around what it passes on."""

import logging
from collections.abc import Collection
from email.utils import formatdate
from typing import TYPE_CHECKING, Final, Unpack

from onceward.core.policy import Options
from onceward.http.answer import Answer
from onceward.http.options import check_seconds
from onceward.http.problem import Problem
from onceward.http.rules import Rules, rules_of
from onceward.proxy.forward import AnswerBroken, Forward
from onceward.proxy.headers import RequestHeaders, connection_options
from onceward.proxy.paths import path_of, readings
from onceward.proxy.problems import FRAMING, LOOP, METHOD, NO_ANSWER, UPGRADE
from onceward.proxy.slow import Patience
from onceward.proxy.upstream import Upstream
from onceward.web.asgi import AsgiIdempotency
from onceward.web.asgi_messages import Message, Receive, Scope, Send, reply

if TYPE_CHECKING:
    from onceward.once import Once

_LOG: Final = logging.getLogger("onceward")
_WELL: Final = Answer(200, [("Content-Type", "application/json"), ("Cache-Control", "no-store")], b'{"status":"ok"}')
_UNCLEAR: Final = FRAMING.about(why="has no path that all servers read alike")
_NOT_PASSED: Final = frozenset(
    {"CONNECT", "TRACE"}
)  # a tunnel passes no guard; TRACE shows credentials (RFC 9110, 9.3.8)


class Proxy:
    """An HTTP application behind this one takes effect once for each idempotency key.

    An ASGI 3 application, under asyncio. ``onceward proxy`` runs it under uvicorn.

    Args:
        upstream: where the application is: an ``http://`` or ``https://`` URL, or ``unix:`` and the path of a socket.
        once: the ledger and the defaults of the policy.
        rules: which requests carry a key, whose it is, and how they are answered; as for :class:`onceward.web.AsgiIdempotency`.
        name: the namespace of the keys; each service on the ledger needs its own. It is required unless ``once`` has one.
        wait: seconds a request waits for the answer to an earlier one; without it, it gets a 409 at once.
        health: the path that says that the proxy runs; None passes every path on.
        silence: seconds for which the upstream, or a client in the middle of its body, can be silent.
        preserve_host: send the client's ``Host`` to the upstream, not the upstream's own.
        trusted_proxies: addresses of proxies in front of this one, whose Forwarded and X-Forwarded headers are kept.
        **options: see :class:`onceward.Policy`; ``cache`` has no effect here.

    Raises:
        TypeError, ValueError: an option is not valid.
    """

    def __init__(
        self,
        upstream: str,
        once: "Once",
        rules: Rules | None = None,
        *,
        name: str | None = None,
        wait: float | None = None,
        health: str | None = "/healthz",
        silence: float = 60.0,
        preserve_host: bool = False,
        trusted_proxies: Collection[str] = (),
        **options: Unpack[Options],
    ) -> None:
        check_seconds("silence", silence)
        if not silence:
            raise ValueError("silence=0: give the seconds for which the upstream can be silent, such as 60")
        if health is not None and not health.startswith("/"):
            raise ValueError(f"health={health!r}: give a path, such as '/healthz', or None")
        self._upstream = Upstream(upstream)
        self._rules = rules_of(rules)
        self._docs = self._rules.docs
        self._headers = RequestHeaders(None if preserve_host else self._upstream.authority, trusted_proxies)
        self._health = health
        self._silence = silence
        forward = Forward(self._upstream, self._headers, silence, self._docs)
        self._guarded = AsgiIdempotency(forward, once, rules, name=name, wait=wait, relay=False, **options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] == "lifespan":
            return await self._live(receive, send)
        if scope["type"] != "http":
            await receive()
            return await send({"type": "websocket.close", "code": 1008})
        sending = _Dated(send)
        path = path_of(scope)
        if path is None:
            return await self._refuse(scope, sending, _UNCLEAR)
        scope["raw_path"], scope["path"] = path, readings(path)[0]
        if scope["path"] == self._health and scope["method"] in {"GET", "HEAD"}:
            return await reply(sending, _WELL)
        if (problem := self._problem(scope)) is not None:
            return await self._refuse(scope, sending, problem)
        try:
            await self._guarded(scope, Patience(receive, self._silence), sending)
        except AnswerBroken as error:
            _LOG.warning("%s", error)
            if not sending.began:
                await reply(sending, NO_ANSWER.about(why="broke off its answer").answer(self._docs))
        return None

    async def _refuse(self, scope: Scope, send: Send, problem: Problem) -> None:
        """Answer a request that is not passed on. What follows an ambiguous one must not be read (RFC 9112, section 6.1)."""
        answer = problem.answer(self._docs)
        if problem.kind == FRAMING.kind and scope.get("http_version", "1.1").startswith("1"):
            answer = Answer(answer.status, [*answer.headers, ("Connection", "close")], answer.body)
        await reply(send, answer)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Answer the server's lifespan, and close idle connections at its end."""
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._upstream.close()
        await send({"type": "lifespan.shutdown.complete"})

    def _problem(self, scope: Scope) -> Problem | None:
        """Return why a request is not passed on."""
        headers = scope["headers"] = list(scope["headers"])
        names = [name for name, _ in headers]
        method: str = scope["method"]
        if method.upper() in _NOT_PASSED:
            return METHOD.about(method=method)
        if b"upgrade" in names and b"upgrade" in connection_options(headers):
            for name, value in headers:
                if name == b"upgrade" and value.lower().startswith(b"websocket"):
                    return UPGRADE
        # Two readers of such a request can disagree on where it ends (RFC 9112, sections 6.1 and 11.2).
        if b"transfer-encoding" in names:
            if b"content-length" in names:
                return FRAMING.about(why="has both Transfer-Encoding and Content-Length")
            if scope.get("http_version") == "1.0":
                return FRAMING.about(why="has Transfer-Encoding, which HTTP/1.0 does not know")
        if len({self._rules.route(method.upper(), path) for path in readings(scope["raw_path"])}) > 1:
            return FRAMING.about(why="has a path that servers read in two ways, and the routes differ for them")
        if self._headers.is_loop(headers):
            return LOOP
        return None


class _Dated:
    """A ``send`` that dates answers which have no date (RFC 9110, section 6.6.1), and knows whether one began."""

    began = False

    def __init__(self, send: Send) -> None:
        self._send = send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.began = True
            headers = message.get("headers", ())
            if not any(name.lower() == b"date" for name, _ in headers):
                message = {**message, "headers": [*headers, (b"date", formatdate(usegmt=True).encode())]}
        await self._send(message)
