"""The ASGI application that passes each request on, and its answer back. Under the middleware, it is the guarded one.

While the upstream may have had its effect and its outcome is not known, the scope says MAY_HAVE_RUN: then the key stays claimed to
the end of its lease. That is so from the first byte that is sent until the answer is whole, and after a gateway's answer.
"""

import asyncio
import contextlib
from typing import Final

import h11

from onceward.claim.running import CURRENT
from onceward.errors import OncewardError
from onceward.http.problem import Problem
from onceward.http.trouble import tell
from onceward.proxy.headers import Lines, RequestHeaders, answer_lines
from onceward.proxy.upstream import Link, Upstream
from onceward.web.asgi_cut import BEGAN, MAY_HAVE_RUN
from onceward.web.asgi_messages import DISCONNECT, Message, Receive, Scope, Send, reply

_WITHOUT_BODY: Final = {"DELETE", "GET", "HEAD", "OPTIONS"}
# A gateway in front of the application answers these after a request that the application may have carried out.
_UNSURE: Final = {502, 504, 520, 522, 524}  # the last three are Cloudflare's
_MAYBE: Final = "The service behind this proxy has the request, and {why}. It may have carried the request out."
_UNREACHABLE: Final = Problem(
    "upstream-unreachable", 502, "The service cannot be reached", "Nothing was done. Send the request again later.", 1
)
NO_ANSWER: Final = Problem(
    "upstream-no-answer", 502, "The service gave no answer", _MAYBE.format(why="gave no whole answer")
)
_SILENT: Final = Problem(
    "upstream-silent", 504, "The service did not answer in time", _MAYBE.format(why="did not answer in time")
)


class AnswerBroken(OncewardError):
    """The upstream broke off its answer. What the client has of it must not look whole."""


class Forward:
    """Passes requests on, to an ``upstream`` that can be silent for ``silence`` seconds. ``docs`` is the URL in problems."""

    def __init__(self, upstream: Upstream, headers: RequestHeaders, silence: float, docs: str) -> None:
        self._upstream, self._headers, self._silence, self._docs = upstream, headers, silence, docs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. Raises AnswerBroken if the answer ends before its end."""
        message = await receive()
        path, query = scope["raw_path"], scope.get("query_string", b"")  # as the rules have seen them
        target = path if path == b"*" else self._upstream.base + path + (b"?" + query if query else b"")
        lines = self._headers.lines(scope, CURRENT.get()) + _framing(scope, message)
        request = h11.Request(method=scope["method"], target=target, headers=lines)
        try:
            link = await self._upstream.connected()
        except OSError as error:
            scope[BEGAN] = False
            tell(f"{self._upstream.address} takes no connection", error)
            return await reply(send, _UNREACHABLE.answer(self._docs))
        passing = _Passing(link, scope, receive, send, self._silence)
        scope[MAY_HAVE_RUN] = True
        try:
            await passing.run(request, message)
        except (h11.RemoteProtocolError, TimeoutError) as error:
            if passing.client_left:
                passing.settle()
            elif passing.status:
                raise AnswerBroken(f"{self._upstream.address} broke off its answer: {error!r}") from error
            else:
                await reply(send, (_SILENT if isinstance(error, TimeoutError) else NO_ANSWER).answer(self._docs))
        except (OSError, asyncio.CancelledError) as left:
            passing.settle()  # the client has left, and the middleware lets this end: the rest is not replayed
            if not isinstance(left, OSError):
                raise


class _Passing:
    """One request on its way to the upstream, and its answer on its way back."""

    status = 0  # the answer's; 0 before its head has come
    client_left = False  # before the answer was whole
    _is_whole = False  # whether the answer was read to its end

    def __init__(self, link: Link, scope: Scope, receive: Receive, send: Send, silence: float) -> None:
        self._link, self._scope, self._receive, self._send, self._silence = link, scope, receive, send, silence
        self._limit = asyncio.timeout(None)  # of a wait for the upstream

    async def run(self, request: h11.Request, first: Message) -> None:
        """Pass on a request, the ``first`` part of whose body has come, and its answer.

        Raises:
            RemoteProtocolError: the upstream gave no answer, or broke it off.
            TimeoutError: it was silent.
            OSError: the client has left.
        """
        sender = asyncio.ensure_future(self._send_request(request, first))
        try:
            async with self._limit:
                head = await self._link.head()
                self._allow(None)
                self.status = head.status_code
                await self._answer(answer_lines(self.status, list(head.headers)))
        finally:
            sender.cancel()
            self._link.close()

    def settle(self) -> None:
        """Note that the outcome is known."""
        if self.status and self.status not in _UNSURE:
            self._scope[MAY_HAVE_RUN] = False

    async def _answer(self, headers: Lines) -> None:
        await self._send({"type": "http.response.start", "status": self.status, "headers": headers})
        is_events = dict(headers).get(b"content-type", b"").lower().startswith(b"text/event-stream")
        while not self._is_whole:
            self._allow(None if is_events else self._silence)
            part = await self._link.part()
            self._allow(None)
            if part is None:
                if self.client_left:
                    raise ConnectionResetError("the client has left")
                self._is_whole = True
                self.settle()
            await self._send({"type": "http.response.body", "body": part or b"", "more_body": part is not None})

    async def _send_request(self, request: h11.Request, message: Message) -> None:
        """Send it. Then wait until the client leaves, and close the link: a cancellation could reach the answer's record."""
        events: list[h11.Event] = [request]
        with contextlib.suppress(OSError, h11.LocalProtocolError):  # the answer says more, if there is one
            while message["type"] != DISCONNECT:
                is_last = not message.get("more_body", False)
                events += [h11.Data(data=message.get("body", b"")), *([h11.EndOfMessage()] if is_last else [])]
                self._allow_head(self._silence)
                await self._link.send(*events)
                if is_last:
                    break
                self._allow_head(None)  # the client has limits of its own
                message, events = await self._receive(), []
        while message["type"] != DISCONNECT:
            message = await self._receive()
        if not self._is_whole:
            self.client_left = True
            self._link.close()

    def _allow(self, seconds: float | None) -> None:
        """Let the upstream be silent for ``seconds`` from now; None is for as long as it is not asked."""
        self._limit.reschedule(None if seconds is None else asyncio.get_running_loop().time() + seconds)

    def _allow_head(self, seconds: float | None) -> None:
        if not self.status and not self._limit.expired():
            self._allow(seconds)


def _framing(scope: Scope, first: Message) -> Lines:
    """Return the lines that say how long a body is whose first part has come."""
    if first.get("more_body", False):
        return [line for line in scope["headers"] if line[0] == b"content-length"] or [
            (b"transfer-encoding", b"chunked")
        ]
    size = len(first.get("body", b""))
    # Methods that have no body need no length (RFC 9110, section 8.6).
    return [] if not size and scope["method"] in _WITHOUT_BODY else [(b"content-length", b"%d" % size)]
