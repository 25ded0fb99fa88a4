"""The ASGI application that passes each request on, and its answer back. Under the middleware, it is the guarded one.

While the upstream may have had its effect and its outcome is not known, the scope says MAY_HAVE_RUN: then the key stays claimed to
the end of its lease. That is so from the first byte that is sent until the answer is whole, and after a gateway's answer.

Each request has a connection of its own. A kept one may have bytes that the upstream sent unasked, and httpx would read them as the
answer to the next request. It may also close just as a request goes out, and nobody could tell whether that was carried out.
"""

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from typing import Final

import httpx

from onceward.claim.running import CURRENT
from onceward.core.arguments import check_type
from onceward.core.urls import shown_url
from onceward.errors import OncewardError
from onceward.http.problem import Problem
from onceward.http.trouble import tell
from onceward.proxy.headers import Lines, RequestHeaders, answer_lines
from onceward.web.asgi_cut import BEGAN, MAY_HAVE_RUN
from onceward.web.asgi_messages import DISCONNECT, Message, Receive, Scope, Send, reply
from onceward.wire import tls

_CONNECT_WITHIN: Final = 10.0  # seconds
_WITHOUT_BODY: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS"})
# A gateway in front of the application answers these after a request that the application may have carried out.
_UNSURE: Final = frozenset({502, 504, 520, 522, 524})  # the last three are Cloudflare's
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*").fullmatch  # RFC 9110, section 5.5; h11 takes more
_UNREACHABLE: Final = Problem(
    "upstream-unreachable",
    502,
    "The service cannot be reached",
    "The service behind this proxy takes no connection. Nothing was done. Send the request again later.",
    1,
)
NO_ANSWER: Final = Problem(
    "upstream-no-answer",
    502,
    "The service gave no answer",
    "The service behind this proxy has the request, and its answer broke off or cannot be read. It may have carried the request out.",
)
_SILENT: Final = Problem(
    "upstream-silent",
    504,
    "The service did not answer in time",
    "The service behind this proxy has the request, and did not answer in time. It may have carried the request out.",
)


class AnswerBroken(OncewardError):
    """The upstream broke off its answer. What the client has of it must not look whole."""


class Forward:
    """Passes requests on; the arguments are those of the proxy. ``headers`` makes the headers of requests."""

    def __init__(
        self, upstream: str, silence: float, docs: str, trusted: Collection[str], *, preserve_host: bool
    ) -> None:
        self._address, self._silence, self._docs = upstream, silence, docs
        self._url, self._socket = _place(upstream)
        self._base = self._url.raw_path.rstrip(b"/")
        self.headers = RequestHeaders(None if preserve_host else self._url.netloc, trusted)
        # An empty one for http: httpx would read the system's certificates for it each time.
        is_tls = self._url.scheme == "https"
        self._tls = tls.context(tls.SSL_BUNDLE) if is_tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. Raises AnswerBroken if the answer ends before its end."""
        message = await receive()
        if message["type"] == DISCONNECT:
            return
        passing = _Passing(scope, receive, send, self._silence)
        scope[MAY_HAVE_RUN] = True
        try:
            await passing.run(
                # httpx's transport, because its client adds cookies, redirects and decoding
                httpx.AsyncHTTPTransport(verify=self._tls, trust_env=False, uds=self._socket),
                self._request(scope, message, passing.body(message)),
            )
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            scope[MAY_HAVE_RUN] = scope[BEGAN] = False
            tell(f"{self._address} takes no connection", error)
            await reply(send, _UNREACHABLE.answer(self._docs))
        except (httpx.HTTPError, TimeoutError) as error:
            if passing.client_left:
                passing.settle()
            elif passing.status:
                raise AnswerBroken(f"{self._address} broke off its answer: {str(error) or 'no more came'}") from error
            else:
                problem = _SILENT if isinstance(error, TimeoutError) else NO_ANSWER
                await reply(send, problem.answer(self._docs))
        except OSError:  # the client has left
            passing.settle()

    def _request(self, scope: Scope, first: Message, body: AsyncGenerator[bytes, None]) -> httpx.Request:
        """Return the request for the upstream. The path and the query are as they were sent, and as the rules have seen them."""
        path, query, method = scope["raw_path"], scope.get("query_string", b""), scope["method"]
        lines = self.headers.lines(scope, CURRENT.get())
        size = len(first.get("body", b""))
        if first.get("more_body", False):
            sizes = [line for line in scope["headers"] if line[0] == b"content-length"]
            lines += sizes or [(b"transfer-encoding", b"chunked")]
        elif size or method not in _WITHOUT_BODY:  # these need no length (RFC 9110, section 8.6)
            lines.append((b"content-length", b"%d" % size))
        target = path if path == b"*" else self._base + path + (b"?" + query if query else b"")
        extensions = {"target": target, "timeout": {"connect": _CONNECT_WITHIN}}
        return httpx.Request(method, self._url, headers=lines, stream=_Parts(body), extensions=extensions)


class _Passing:
    """One request on its way to the upstream, and its answer on its way back.

    Attributes:
        status: the answer's; 0 before its head has come.
        client_left: whether the client left before the answer was whole.
    """

    status = 0
    client_left = False
    _is_whole = False  # whether the answer was read to its end

    def __init__(self, scope: Scope, receive: Receive, send: Send, silence: float) -> None:
        self._scope, self._receive, self._send, self._silence = scope, receive, send, silence
        self._sent = asyncio.Event()  # whether the body was sent
        self._limit = asyncio.timeout(None)  # of a wait for the upstream

    async def run(self, transport: httpx.AsyncHTTPTransport, request: httpx.Request) -> None:
        """Send a request, and pass its answer on.

        Raises:
            httpx.HTTPError: the upstream gave no answer, or broke it off.
            TimeoutError: it was silent.
            OSError: the client has left.
        """
        watch = asyncio.ensure_future(self._watch(transport))
        try:
            async with self._limit, transport:
                response = await transport.handle_async_request(request)
                self._allow(None)
                headers = answer_lines(response.status_code, _checked(response))
                self.status = response.status_code
                await self._send({"type": "http.response.start", "status": self.status, "headers": headers})
                await self._answer(response)
        except asyncio.CancelledError:
            self.settle()  # the middleware lets this end: the rest is not replayed
            raise
        finally:
            watch.cancel()

    async def body(self, message: Message) -> AsyncGenerator[bytes, None]:
        """Give the parts of the body, the first of which has come."""
        self._allow(self._silence)
        yield message.get("body", b"")
        while message.get("more_body", False):
            self._allow(None)  # the client has limits of its own
            message = await self._receive()
            if message["type"] == DISCONNECT:
                raise ConnectionResetError("the client has left")
            self._allow(self._silence)
            yield message.get("body", b"")
        self._sent.set()

    def settle(self) -> None:
        """Note that the outcome is known."""
        if self.status and self.status not in _UNSURE:
            self._scope[MAY_HAVE_RUN] = False

    async def _answer(self, response: httpx.Response) -> None:
        assert isinstance(response.stream, httpx.AsyncByteStream)
        parts = aiter(response.stream)
        is_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        while not self._is_whole:
            self._allow(None if is_events else self._silence)
            part = await anext(parts, None)
            self._allow(None)
            if part is None:
                self._is_whole = True
                self.settle()
            await self._send({"type": "http.response.body", "body": part or b"", "more_body": part is not None})

    def _allow(self, seconds: float | None) -> None:
        """Let the upstream be silent for ``seconds`` from now; None is for as long as it is not asked."""
        self._limit.reschedule(None if seconds is None else asyncio.get_running_loop().time() + seconds)

    async def _watch(self, transport: httpx.AsyncHTTPTransport) -> None:
        """Close the connection when the client leaves. A cancellation could reach the record of the answer."""
        await self._sent.wait()
        while (await self._receive())["type"] != DISCONNECT:
            pass
        if not self._is_whole:
            self.client_left = True
            await transport.aclose()


class _Parts(httpx.AsyncByteStream):
    """A body that is sent as it comes."""

    def __init__(self, parts: AsyncGenerator[bytes, None]) -> None:
        self._parts = parts

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts


def _checked(response: httpx.Response) -> Lines:
    """Return an answer's headers, the names in lower case. Raises RemoteProtocolError if it cannot be passed on."""
    lines = [(name.lower(), value) for name, value in response.headers.raw]
    names = {name for name, _ in lines}
    if not 200 <= response.status_code <= 599:  # servers know no reason phrase beyond it
        raise httpx.RemoteProtocolError(f"the answer has the status {response.status_code}")
    if b"transfer-encoding" in names and (b"content-length" in names or response.http_version != "HTTP/1.1"):
        raise httpx.RemoteProtocolError("the answer's length is not clear")
    if not all(_VALUE(value) for _, value in lines):
        raise httpx.RemoteProtocolError("a header of the answer has characters that a header cannot have")
    return lines


def _place(upstream: str) -> tuple[httpx.URL, str | None]:
    """Return the URL of an upstream, and the path of its socket if it has one. Raises ValueError."""
    check_type("Proxy(upstream)", upstream, str, "a URL such as http://127.0.0.1:8000")
    if upstream.startswith("unix:"):
        return httpx.URL("http://localhost"), upstream.removeprefix("unix:")
    try:
        url = httpx.URL(upstream)
        url.host.encode("idna")
    except (httpx.InvalidURL, ValueError) as error:
        raise ValueError(f"upstream={shown_url(upstream)!r} is not a URL") from error
    if url.scheme not in {"http", "https"} or not url.host or set(upstream) & set("@?#") or (url.port or 80) > 65535:
        raise ValueError(
            f"upstream={shown_url(upstream)!r}: give a URL such as http://127.0.0.1:8000, without a user, a query and a fragment, or "
            "unix:/run/app.sock"
        )
    return url, None
