"""The ASGI application that passes each request on, and its answer back. Under the middleware, it is the guarded one.

While the upstream may have had its effect and its outcome is not known, the scope says MAY_HAVE_RUN: then the key stays claimed to
the end of its lease. That is so from the first byte that is sent until the answer is whole, and after a gateway's answer.
"""

import asyncio
import contextlib
from typing import Any, Final

from onceward.claim.claim import Claim
from onceward.claim.running import CURRENT
from onceward.errors import OncewardError
from onceward.http.problem import Problem
from onceward.http.trouble import tell
from onceward.proxy.connection import Connection
from onceward.proxy.headers import Lines, RequestHeaders, answer_lines
from onceward.proxy.problems import NO_ANSWER, SILENT, UNREACHABLE
from onceward.proxy.reading import AnswerHead, Parts, read_body, read_head
from onceward.proxy.upstream import Upstream
from onceward.web.asgi_cut import BEGAN, MAY_HAVE_RUN
from onceward.web.asgi_messages import DISCONNECT, Message, Receive, Scope, Send, reply
from onceward.wire.http1 import Unreadable

_WITHOUT_BODY: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS"})
# A gateway in front of the application answers these after a request that the application may have carried out.
_UNSURE: Final = frozenset({502, 504, 520, 522, 524})  # the last three are Cloudflare's


class AnswerBroken(OncewardError):
    """The upstream broke off its answer. What the client has of it must not look whole."""


class Forward:
    """Passes requests on.

    Args:
        upstream: where to.
        headers: makes the headers.
        silence: seconds for which the upstream can be silent.
        docs: the URL of the documentation, for problems.
    """

    def __init__(self, upstream: Upstream, headers: RequestHeaders, silence: float, docs: str) -> None:
        self._upstream = upstream
        self._headers = headers
        self._silence = silence
        self._docs = docs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. Raises AnswerBroken if the answer ends before its end."""
        claim = CURRENT.get()
        try:
            connection = await self._upstream.connection()
        except OSError as error:
            scope[BEGAN] = False
            tell(f"{self._upstream.address} takes no connection", error)
            await self._refuse(send, UNREACHABLE)
            return
        passing = _Passing(self._upstream, connection, self._silence, scope, receive)
        try:
            await passing.request(self._headers.lines(scope, claim), claim)
            try:
                head = await passing.head()
            except (OSError, Unreadable) as error:
                if not passing.client_left:
                    await self._refuse(send, _problem(error))
                return
            await passing.answer(head, send)
        finally:
            passing.end()

    async def _refuse(self, send: Send, problem: Problem) -> None:
        await reply(send, problem.answer(self._docs))


class _Passing:
    """One request on its way to the upstream, and its answer on its way back."""

    client_left = False
    _is_whole = False  # whether the answer was read to its end
    _limit: asyncio.Timeout | None = None  # of the wait for the answer's head
    _sender: "asyncio.Task[None] | None" = None

    def __init__(
        self, upstream: Upstream, connection: Connection, silence: float, scope: Scope, receive: Receive
    ) -> None:
        self._upstream = upstream
        self._connection = connection
        self._silence = silence
        self._scope = scope
        self._receive = receive
        self._head: AnswerHead | None = None

    async def request(self, lines: Lines, claim: Claim | None) -> None:
        """Send the head and what there is of the body. The rest is sent beside the answer."""
        sizes = [(name, value) for name, value in self._scope["headers"] if name == b"content-length"]
        chunked = any(name == b"transfer-encoding" for name, _ in self._scope["headers"])
        message: Message | None = None
        if claim is not None or not (
            sizes or chunked
        ):  # the middleware has the whole body, and HTTP/2 frames it otherwise
            message = await self._receive()
            chunked = message.get("more_body", False)
            sizes = [] if chunked else _size(message.get("body", b""), self._scope["method"])
        self._scope[MAY_HAVE_RUN] = True
        target = _target(self._scope, self._upstream.base)
        method: str = self._scope["method"]
        lines = lines + ([(b"transfer-encoding", b"chunked")] if chunked else sizes)
        head = b"".join(
            [
                b"%b %b HTTP/1.1\r\n" % (method.encode(), target),
                *[b"%b: %b\r\n" % line for line in lines],
                b"\r\n",
            ]
        )
        body: bytes = b"" if message is None else message.get("body", b"")
        self._connection.write(head + _framed(body, chunked=chunked))
        self._sender = asyncio.ensure_future(self._send_rest(message, chunked=chunked))

    async def head(self) -> AnswerHead:
        """Return the head of the answer. Raises OSError or Unreadable if there is none."""
        async with asyncio.timeout(self._silence) as self._limit:
            self._head = await read_head(self._connection, self._scope["method"])
        return self._head

    def _count(self, seconds: float | None) -> None:
        """Let the upstream be silent for ``seconds`` from now; None is for as long as it waits for the body."""
        if self._limit is not None and self._head is None and not self._limit.expired():
            self._limit.reschedule(None if seconds is None else asyncio.get_running_loop().time() + seconds)

    async def answer(self, head: AnswerHead, send: Send) -> None:
        """Pass the answer on. Raises AnswerBroken if it ends before its end."""
        await send(
            {
                "type": "http.response.start",
                "status": head.status,
                "headers": answer_lines(head.status, head.headers),
            }
        )
        parts = read_body(self._connection, head.size)
        try:
            last = False
            while not last:
                part, last = await self._part(parts, head)
                await send({"type": "http.response.body", "body": part, "more_body": not last})
        except (OSError, asyncio.CancelledError) as left:
            self._settle(head)  # the client has left, and the middleware lets this end: the rest is not replayed
            if not isinstance(left, OSError):
                raise
        finally:
            await parts.aclose()

    async def _part(self, parts: Parts, head: AnswerHead) -> tuple[bytes, bool]:
        """Return the next part of the answer, and whether it is the last. Raises OSError if the client has left."""
        try:
            async with asyncio.timeout(None if _is_events(head) else self._silence):
                part, last = await anext(parts)
        except (OSError, Unreadable) as error:
            if self.client_left:
                raise OSError("the client has left") from error
            raise AnswerBroken(
                f"{self._upstream.address} broke off its answer: {str(error) or 'no more came'}"
            ) from error
        if last:
            self._is_whole = True
            self._settle(head)
        return part, last

    def end(self) -> None:
        """Give the connection back, or close it."""
        sent = self._sender is None or self._sent
        if self._sender is not None:
            self._sender.cancel()
        if self._is_whole and sent and self._head is not None and self._head.persistent:
            self._upstream.keep(self._connection)
        else:
            self._connection.close()

    _sent = False  # whether the request's body was sent to its end

    async def _send_rest(self, message: Message | None, *, chunked: bool) -> None:
        """Send the rest of the body. Then wait until the client leaves, and break the request off."""
        with contextlib.suppress(OSError):  # the answer says more, if there is one
            while message is None or message.get("more_body", False):
                self._count(None)  # the client has limits of its own
                message = await self._receive()
                if message["type"] == DISCONNECT:
                    self._leave()
                    return
                self._count(self._silence)
                self._connection.write(_framed(message.get("body", b""), chunked=chunked))
                await self._connection.drain()
            if chunked:
                self._connection.write(b"0\r\n\r\n")
            self._sent = True
        while (await self._receive())["type"] != DISCONNECT:
            pass
        self._leave()

    def _leave(self) -> None:
        if not self._is_whole:
            self.client_left = True
            self._connection.close()

    def _settle(self, head: AnswerHead) -> None:
        """Note that the outcome is known."""
        if head.status not in _UNSURE:
            self._scope.pop(MAY_HAVE_RUN, None)


def _framed(body: bytes, *, chunked: bool) -> bytes:
    """Return a part of a body as it goes out."""
    return b"%x\r\n%b\r\n" % (len(body), body) if body and chunked else body


def _size(body: bytes, method: str) -> Lines:
    """Return the Content-Length of a whole body. Methods that have no body need none (RFC 9110, section 8.6)."""
    return [] if not body and method in _WITHOUT_BODY else [(b"content-length", b"%d" % len(body))]


def _problem(error: Exception) -> Problem:
    if isinstance(error, TimeoutError):
        return SILENT
    why = "its answer cannot be read" if isinstance(error, Unreadable) else "closed the connection"
    return NO_ANSWER.about(why=why)


def _is_events(head: AnswerHead) -> bool:
    return any(
        name == b"content-type" and value.lower().startswith(b"text/event-stream") for name, value in head.headers
    )


def _target(scope: Any, base: bytes) -> bytes:
    """Return the target of the request line."""
    path: bytes = scope["raw_path"]  # as the rules have seen it
    if path == b"*":
        return path
    query: bytes = scope.get("query_string", b"")
    return base + path + (b"?" + query if query else b"")
