"""The proxy as an ASGI application: what it answers itself, and the middleware around what it passes on."""

import re
from collections.abc import Collection
from typing import Final, Unpack
from urllib.parse import quote, unquote

import h11

from onceward.claim.held import innermost
from onceward.core.arguments import seconds
from onceward.http.answer import Answer
from onceward.http.guarded import tell
from onceward.http.problem import Problem
from onceward.http.route import WebOptions
from onceward.http.rules import Rules, rules_of
from onceward.once import Once
from onceward.proxy.passing import Passing
from onceward.proxy.upstream import RequestHeaders, Upstream
from onceward.web.asgi import AsgiIdempotency
from onceward.web.asgi_began import BEGAN
from onceward.web.asgi_messages import DatedSend, Receive, Scope, Send, live, patient, reply

_WELL: Final = Answer(200, [("Content-Type", "application/json"), ("Cache-Control", "no-store")], b'{"status":"ok"}')
_FRAMING: Final = Problem("framing", 400, "Request is ambiguous", "The request {why}. Nothing was done.")
_UPGRADE: Final = Problem("upgrade", 501, "Upgrades do not pass", "This proxy passes HTTP only. Nothing was done.")
_METHOD: Final = Problem("method", 501, "This method does not pass", "This proxy does not pass {method} on.")
_LOOP: Final = Problem("loop", 508, "The proxy is its own upstream", "The request came back to the proxy.")
_UNREACHABLE: Final = Problem("upstream-unreachable", 502, "The service cannot be reached", "Nothing was done.", 1)
_MAYBE: Final = "The service behind this proxy has the request. It may have carried the request out."
_NO_ANSWER: Final = Problem("upstream-no-answer", 502, "The service gave no whole answer", _MAYBE)
_SILENT: Final = Problem("upstream-silent", 504, "The service did not answer in time", _MAYBE)

_WHOLE_URL: Final = re.compile(rb"https?://[a-z0-9.:_\[\]-]+(/[^?#]*)?", re.IGNORECASE).fullmatch
_FOREIGN: Final = re.compile(r"[\x00-\x1f\x7f]").search  # some readers end a path at a NUL or a line break
_SLASH: Final = re.compile(rb"%2f", re.IGNORECASE).sub


class Proxy:
    """An ASGI 3 application, under asyncio. The HTTP application behind it takes effect once for each idempotency key.

    Args:
        upstream: where the application is: an ``http://`` or ``https://`` URL, whose path stands before that of each request; or
            ``unix:`` and the path of a socket. Certificates are verified. SSL_CERT_FILE can name a file of trusted ones.
        once: the ledger.
        rules: as for :class:`onceward.web.AsgiIdempotency`.
        options: as there.
        health: the path that says that the proxy runs; None passes every path on.
        silence: seconds for which the upstream, or a client in the middle of its body, can be silent; 0 is no limit.
        trusted_proxies: addresses of proxies in front of this one, whose X-Forwarded headers are kept.

    Raises:
        TypeError, ValueError: an option is not valid.
    """

    def __init__(
        self,
        upstream: str,
        once: Once,
        rules: Rules | None = None,
        *,
        health: str | None = "/healthz",
        silence: float = 60.0,
        trusted_proxies: Collection[str] = (),
        **options: Unpack[WebOptions],
    ) -> None:
        self._rules, self._health, self._silence = rules_of(rules), health, seconds(silence) or None
        self._upstream = Upstream(upstream)
        self._headers = RequestHeaders(self._upstream.authority, trusted_proxies)
        self._guarded = AsgiIdempotency(self._forward, once, rules, relay=False, **options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the lifespan."""
        if scope["type"] == "lifespan":
            return await live(receive, send, self._upstream.close)
        if scope["type"] != "http":
            raise NotImplementedError("onceward.proxy takes HTTP only")
        sending = DatedSend(send)
        scope["headers"] = list(scope["headers"])
        problem = self._problem(scope)
        if problem is None:
            if scope["path"] == self._health and scope["method"] in {"GET", "HEAD"}:
                return await reply(sending, _WELL)
            try:
                await self._guarded(scope, patient(receive, self._silence), sending)
            except (h11.RemoteProtocolError, TimeoutError) as error:
                tell(f"{self._upstream.address} gave no whole answer", error)
                if sending.began:
                    return None  # what the client has of it does not look whole
                problem = _SILENT if isinstance(error, TimeoutError) else _NO_ANSWER
            else:
                if not sending.began:  # without an answer, the server would say that the proxy has failed
                    await reply(sending, self._rules.unreadable("its sender has left, or was silent"))
                return None
        answer = problem.answer(self._rules.docs)
        if problem.kind == _FRAMING.kind and scope.get("http_version", "1.1").startswith("1"):
            # What follows an ambiguous request must not be read (RFC 9112, section 6.1).
            answer = answer._replace(headers=[*answer.headers, ("Connection", "close")])
        return await reply(sending, answer)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its answer back; under the middleware. Raises RemoteProtocolError or TimeoutError."""
        first = await receive()
        path, query = scope["raw_path"], scope.get("query_string", b"")  # as the rules have seen them
        target = path if path == b"*" else self._upstream.base + path + (b"?" + query if query else b"")
        lines = self._headers.lines(scope, first, innermost())
        request = h11.Request(method=scope["method"], target=target, headers=lines)
        try:
            link = await self._upstream.connect()
        except OSError as error:
            scope[BEGAN] = False
            tell(f"{self._upstream.address} takes no connection", error)
            return await reply(send, _UNREACHABLE.answer(self._rules.docs))
        return await Passing(link, scope, receive, send, self._silence).run(request, first)

    def _problem(self, scope: Scope) -> Problem | None:
        """Return why a request is not passed on. Else its path is as the rules are to see it."""
        headers, method = dict(scope["headers"]), scope["method"].upper()
        if method in {"CONNECT", "TRACE"}:  # no guard for a tunnel; TRACE shows credentials (RFC 9110, section 9.3.8)
            return _METHOD.about(method=method)
        if headers.get(b"upgrade", b"").lower().startswith(b"websocket"):
            return _UPGRADE
        # Two readers of such a request can disagree on where it ends (RFC 9112, sections 6.1 and 11.2).
        if b"transfer-encoding" in headers and (b"content-length" in headers or scope.get("http_version") == "1.0"):
            return _FRAMING.about(why="has Transfer-Encoding with Content-Length, or in HTTP/1.0")
        if (why := _ambiguity(scope, self._rules)) is not None:
            return _FRAMING.about(why=why)
        return _LOOP if self._headers.is_loop(scope["headers"]) else None


def _ambiguity(scope: Scope, rules: Rules) -> str | None:
    """Return why servers can read the path of a request in two ways; None if they cannot: then the scope gets it as it is sent."""
    path = _path_of(scope)
    if path is None:
        return "has no path that all servers read alike"
    paths = _readings(path)
    if len({rules.route(scope["method"].upper(), one) for one in paths}) > 1:
        return "has a path that servers read in two ways, and the routes differ for them"
    scope["raw_path"], scope["path"] = path, paths[0]
    return None


def _path_of(scope: Scope) -> bytes | None:
    """Return the encoded path of a request, or ``*``; None if two servers can see different ones in its target."""
    path: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    if not path.startswith(b"/") and path != b"*":
        if (match := _WHOLE_URL(path)) is None:  # a whole URL (RFC 9112, section 3.2.2)
            return None
        path = match[1] or b"/"
    decoded = unquote(path.decode("utf-8", "replace"))
    # The application may resolve dot segments, and then see another path than the rules.
    parts = decoded.replace("\\", "/").split("/")
    if any(part.partition(";")[0] in {".", ".."} for part in parts):
        return None
    return None if b"\\" in path or b"#" in path or _FOREIGN(decoded) else path


def _readings(path: bytes) -> list[str]:
    r"""Return the paths that applications can see in an encoded one. The first is the plain decoding.

    Some keep ``%2F`` as a part of a name, some take ``\`` for a slash, and some drop parameters (``;``, RFC 3986, section 3.3).
    """
    plain = unquote(path.decode("utf-8", "replace"))
    if b"%" not in path and b";" not in path:
        return [plain]
    escaped = unquote(_SLASH(b"%252F", path).decode("utf-8", "replace"))
    seen = [plain, escaped, plain.replace("\\", "/")]
    return seen + ["/".join(part.partition(";")[0] for part in one.split("/")) for one in seen]
