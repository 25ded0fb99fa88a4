"""The proxy as an ASGI application: what it answers itself, and the middleware around what it passes on."""

import asyncio
import logging
from collections.abc import Collection
from email.utils import formatdate
from typing import TYPE_CHECKING, Final, Unpack

from onceward.core.policy import Options
from onceward.http.answer import Answer
from onceward.http.options import check_seconds
from onceward.http.paths import path_of, readings
from onceward.http.problem import Problem
from onceward.http.rules import Rules, rules_of
from onceward.proxy.forward import NO_ANSWER, AnswerBroken, Forward
from onceward.proxy.headers import RequestHeaders
from onceward.proxy.upstream import Upstream
from onceward.web.asgi import AsgiIdempotency
from onceward.web.asgi_messages import DISCONNECT, Message, Receive, Scope, Send, reply

if TYPE_CHECKING:
    from onceward.once import Once

_LOG: Final = logging.getLogger("onceward")
_WELL: Final = Answer(200, [("Content-Type", "application/json"), ("Cache-Control", "no-store")], b'{"status":"ok"}')
_FRAMING: Final = Problem("framing", 400, "Request is ambiguous", "The request {why}. Nothing was done.")
_UPGRADE: Final = Problem("upgrade", 501, "Upgrades do not pass", "This proxy passes HTTP only. Nothing was done.")
_METHOD: Final = Problem("method", 501, "This method does not pass", "This proxy passes no {method} on.")
_LOOP: Final = Problem("loop", 508, "The proxy is its own upstream", "The request came back to the proxy.")


class Proxy:
    """An HTTP application behind this one takes effect once for each idempotency key.

    An ASGI 3 application for HTTP, under asyncio. ``onceward proxy`` runs it under uvicorn.

    Args:
        upstream: where the application is: an ``http://`` or ``https://`` URL, whose path stands before that of each request; or
            ``unix:`` and the path of a socket. Certificates are verified. SSL_CERT_FILE can name a file of trusted ones.
        once, rules, name, wait, **options: as for :class:`onceward.web.AsgiIdempotency`.
        health: the path that says that the proxy runs; None passes every path on.
        silence: seconds for which the upstream, or a client in the middle of its body, can be silent.
        preserve_host: send the client's ``Host`` to the upstream, not the upstream's own.
        trusted_proxies: addresses of proxies in front of this one, whose Forwarded and X-Forwarded headers are kept.

    Raises:
        TypeError, ValueError: an option is not valid.
        StoreError: the file of certificates cannot be read.
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
        self._rules, self._health, self._silence = rules_of(rules), health, silence
        at = Upstream(upstream)
        self._headers = RequestHeaders(None if preserve_host else at.authority, trusted_proxies)
        forward = Forward(at, self._headers, silence, self._rules.docs)
        self._guarded = AsgiIdempotency(forward, once, rules, name=name, wait=wait, relay=False, **options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            raise NotImplementedError("onceward.proxy takes HTTP only, and needs no lifespan")
        began = False

        async def dated(message: Message) -> None:  # RFC 9110, section 6.6.1
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                headers = message.get("headers", ())
                if not any(name.lower() == b"date" for name, _ in headers):
                    message = {**message, "headers": [*headers, (b"date", formatdate(usegmt=True).encode())]}
            await send(message)

        answer = self._own(scope)
        if answer is None:
            try:
                return await self._guarded(scope, _patient(receive, self._silence), dated)
            except AnswerBroken as error:
                _LOG.warning("%s", error)
                if began:
                    return None
                answer = NO_ANSWER.answer(self._rules.docs)
        return await reply(dated, answer)

    def _own(self, scope: Scope) -> Answer | None:
        """Return the proxy's own answer; None to a request that it passes on, as the rules are to see it."""
        scope["headers"] = list(scope["headers"])
        path = path_of(scope)
        if path is not None:
            scope["raw_path"], scope["path"] = path, readings(path)[0]
            if scope["path"] == self._health and scope["method"] in {"GET", "HEAD"}:
                return _WELL
        problem = self._problem(scope, path)
        if problem is None:
            return None
        answer = problem.answer(self._rules.docs)
        if answer.status != 400 or not scope.get("http_version", "1.1").startswith("1"):
            return answer
        # What follows an ambiguous request must not be read (RFC 9112, section 6.1).
        return answer._replace(headers=[*answer.headers, ("Connection", "close")])

    def _problem(self, scope: Scope, path: bytes | None) -> Problem | None:
        """Return why a request is not passed on."""
        headers, method = dict(scope["headers"]), scope["method"].upper()
        if path is None:
            return _FRAMING.about(why="has no path that all servers read alike")
        if method in {"CONNECT", "TRACE"}:  # no guard for a tunnel; TRACE shows credentials (RFC 9110, section 9.3.8)
            return _METHOD.about(method=method)
        if headers.get(b"upgrade", b"").lower().startswith(b"websocket"):
            return _UPGRADE
        # Two readers of such a request can disagree on where it ends (RFC 9112, sections 6.1 and 11.2).
        if b"transfer-encoding" in headers and (b"content-length" in headers or scope.get("http_version") == "1.0"):
            return _FRAMING.about(why="has Transfer-Encoding with Content-Length, or in HTTP/1.0")
        if len({self._rules.route(method, one) for one in readings(path)}) > 1:
            return _FRAMING.about(why="has a path that servers read in two ways, and the routes differ for them")
        return _LOOP if self._headers.is_loop(scope["headers"]) else None


def _patient(receive: Receive, seconds: float) -> Receive:
    """Return a ``receive`` that takes a client which is silent in the middle of its body as gone."""
    more = True

    async def patient() -> Message:
        nonlocal more
        try:
            async with asyncio.timeout(seconds if more else None):
                message = await receive()
        except TimeoutError:
            message = {"type": DISCONNECT}
        more = message["type"] != DISCONNECT and message.get("more_body", False)
        return message

    return patient
