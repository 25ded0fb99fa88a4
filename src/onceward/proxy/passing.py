"""One request on its way to the upstream, and its answer on its way back.

While the upstream may have had its effect and its outcome is not known, the scope says MAY_HAVE_RUN: then the key stays claimed to
the end of its lease. That is so from the first byte that is sent until the answer is whole, and after a gateway's answer.
"""

import asyncio
import contextlib
from typing import Final

import h11

from onceward.proxy.upstream import Lines, Link, answer_lines
from onceward.web.asgi_began import MAY_HAVE_RUN
from onceward.web.asgi_messages import DISCONNECT, Message, Receive, Scope, Send

# A gateway in front of the application answers these after a request that the application may have carried out.
_UNSURE: Final = {502, 504, 520, 522, 524}  # the last three are Cloudflare's


class Passing:
    """Passes on one request and its answer. The upstream can be silent for ``silence`` seconds."""

    _status = 0  # the answer's; 0 before its head has come
    _is_unsure = False  # whether it leaves open what the request has done
    _client_left = False  # before the answer was whole
    _is_whole = False  # whether the answer was read to its end

    def __init__(self, link: Link, scope: Scope, receive: Receive, send: Send, silence: float | None) -> None:
        self._link, self._scope, self._receive, self._send, self._silence = link, scope, receive, send, silence
        self._limit = asyncio.timeout(None)  # of a wait for the upstream

    async def run(self, request: h11.Request, first: Message) -> None:
        """Pass on a request, the ``first`` part of whose body has come.

        Raises RemoteProtocolError if the upstream gives no whole answer, TimeoutError if it is silent, nothing if the client leaves.
        """
        self._scope[MAY_HAVE_RUN] = True
        sender = asyncio.ensure_future(self._send_request(request, first))
        try:
            async with self._limit:
                head = await self._link.head(request.method)
                self._allow(None)
                self._status, lines = head.status_code, answer_lines(head.status_code, list(head.headers))
                # An upstream that is still carrying out an earlier attempt answers 409, and asks for patience.
                self._is_unsure = self._status in _UNSURE or (self._status == 409 and b"retry-after" in dict(lines))
                await self._answer(lines)
        except (h11.RemoteProtocolError, OSError, asyncio.CancelledError) as error:
            has_left = self._client_left or (isinstance(error, OSError) and not isinstance(error, TimeoutError))
            if has_left or isinstance(error, asyncio.CancelledError):
                self._settle()  # the middleware lets this end: the rest is not replayed
            if not has_left:
                raise
        finally:
            sender.cancel()
            self._link.end()

    async def _answer(self, headers: Lines) -> None:
        await self._send({"type": "http.response.start", "status": self._status, "headers": headers})
        is_events = dict(headers).get(b"content-type", b"").lower().startswith(b"text/event-stream")
        while not self._is_whole:
            self._allow(None if is_events else self._silence)
            part = await self._link.part()
            self._allow(None)
            if part is None:
                if self._client_left:
                    raise ConnectionResetError("the client has left")
                self._is_whole = True
                self._settle()
            await self._send({"type": "http.response.body", "body": part or b"", "more_body": part is not None})

    async def _send_request(self, request: h11.Request, message: Message) -> None:
        """Send it. Then wait until the client leaves, and close the link: a cancellation could reach the answer's record."""
        events: list[h11.Event] = [request]
        with contextlib.suppress(OSError, h11.LocalProtocolError):  # the answer says more, if there is one
            while message["type"] != DISCONNECT:
                is_last = not message.get("more_body", False)
                events += [h11.Data(data=message.get("body", b"")), *([h11.EndOfMessage()] if is_last else [])]
                self._allow(self._silence, to_begin=True)
                await self._link.send(*events)
                if is_last:
                    break
                self._allow(None, to_begin=True)  # the client has limits of its own
                message, events = await self._receive(), []
        while message["type"] != DISCONNECT:
            message = await self._receive()
        if not self._is_whole:
            self._client_left = True
            self._link.close()

    def _allow(self, seconds: float | None, *, to_begin: bool = False) -> None:
        """Let the upstream be silent for ``seconds`` from now; None is for as long as it is not asked."""
        if not (to_begin and (self._status or self._limit.expired())):
            self._limit.reschedule(None if seconds is None else asyncio.get_running_loop().time() + seconds)

    def _settle(self) -> None:
        """Note that the outcome is known."""
        if self._status and not self._is_unsure:
            self._scope[MAY_HAVE_RUN] = False
