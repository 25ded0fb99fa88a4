"""What an ASGI application receives and sends while it holds a claim.

Its answer passes a gate (``http/gate.py``): it goes to the client as it comes, but for its end, which waits for the record.

That the client has left is not told to the application, for many frameworks cancel the handler then, in the middle of its
effect: ``receive`` waits until the answer is complete. Answers whose body is not going to be replayed are the exception, which
are server-sent events and what is longer than the rules record: nothing is gained by producing the rest of these.
"""

import asyncio
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final

from onceward.errors import OncewardError
from onceward.http.answer import PENDING, Answer
from onceward.http.gate import AnswerGate
from onceward.web.asgi_cut import is_invalid, is_torn
from onceward.web.asgi_messages import DISCONNECT, Message, Receive, Send, lines_of, reply

_PENDING: Final = (PENDING[0].lower().encode(), PENDING[1].encode())


class AsgiDelivery(ABC):
    """The messages between an application and its client.

    Args:
        body: the request's.
        receive: the server's.
        send: the server's.
        most: bytes of an answer's body that are kept, to be recorded.

    Attributes:
        gate: the answer's, or None before it begins.
        complete: whether the application has sent its answer to the end.
        whole: whether that end can be believed. What is inside may end an answer that it was told to break off.
        invalid: whether the framework has answered so because the request is not valid.
        behind: goes on with the record of an answer that goes out before it; None when there is no such.
        interrupted: whether the application was cancelled as its answer was recorded, by a timeout of its own or a task group:
            such may cancel whatever is awaited within, over and over. Await :meth:`conclude` then when it is through.
        left: whether the server has given the request up and takes no more messages; :meth:`leave` says so.
        torn: raise it to the server when the application is through. It breaks off an answer of which the client has a part and is
            not to get the end; or it is the interrupt with which the application has ended. Else None.
    """

    gate: AnswerGate | None = None
    complete = False
    whole = True
    invalid = False
    behind: Callable[[], Awaitable[None]] | None = None
    interrupted = False
    left = False
    torn: BaseException | None = None
    _sent = False  # whether the client has a part of it
    _open = False  # whether the application may know that the client has left
    _gone = False  # whether it does
    _knows = False  # whether the application was told, before its answer was complete
    _told = False  # whether there is something to tell of the client
    _telling: asyncio.Event | None = None  # for who waits for that
    _sender: asyncio.Task[object] | None = None  # in the middle of a message to the server

    def __init__(self, body: bytes, receive: Receive, send: Send, most: int) -> None:
        self._body: bytes | None = body
        self._receive = receive
        self._send = send
        self._most = most
        self._held: list[Message] = []

    @abstractmethod
    async def settle(self) -> Answer | None:
        """Record the answer, of which the end has come and is held back meanwhile; return what is sent instead, or None."""

    @property
    def ends_early(self) -> bool:
        """Whether the application has reason to stop in the middle of its answer: nobody takes the rest of it."""
        return self._open and not self.complete and (self._gone or self.left)

    def leave(self) -> None:
        """Take in that the server takes no more messages; one on its way might wait for ever to be taken."""
        self.left = True
        if self._sender is not None:
            self._sender.cancel()

    async def receive(self) -> Message:
        """Return the request; and after that, what there is to tell of the client."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if not self._told:
            if self._telling is None:
                self._telling = asyncio.Event()
            await self._telling.wait()
        if self.complete or self._gone or self.left:
            self._knows = True
            return {"type": DISCONNECT}
        message = await self._receive()
        if message["type"] == DISCONNECT:
            self._gone = self._knows = True
        return message

    async def send(self, message: Message) -> None:
        """Take in a message of the application's."""
        kind = message["type"]
        gate = self.gate
        if gate is None:
            if kind == "http.response.start":
                self._begin(message)
                return
        elif kind == "http.response.body" and not self.complete:
            self._held.append(message)
            gate.take(message.get("body", b""))
            if not self._open and gate.ends_with_client:
                self._end_with_client()
            if not message.get("more_body", False):
                self.whole = self._is_whole(gate, message)
                self.complete = True
                await self.conclude()
            elif gate.size != gate.length:
                await self.flush()
            return
        if self.interrupted:
            return  # something else in place of the answer that it has given
        await self._forward(message)  # an extension's, or a mistake, which the server tells

    async def flush(self) -> None:
        """Send what is held back."""
        if self._held:
            held, self._held, self._sent = self._held, [], True
            await self._forward(*held)

    def _begin(self, message: Message) -> None:
        self._held.append(message)
        self.gate = AnswerGate(message["status"], lines_of(message.get("headers", ())), self._most)
        if 400 <= message["status"] < 500:
            self.invalid = is_invalid(sys.exception())
        if self.gate.is_events:
            self._end_with_client()

    def _is_whole(self, gate: AnswerGate, last: Message) -> bool:
        if gate.length is not None and gate.size:
            return gate.size >= gate.length
        return not (self._knows or is_torn(last, sys._getframe()))

    async def conclude(self) -> None:
        """Have the complete answer recorded, and send its end."""
        try:
            instead = await self.settle()
            if instead is None:
                held, self._held = self._held, []
                if self.behind is not None and not self._sent:
                    held[0] = {**held[0], "headers": [*held[0].get("headers", ()), _PENDING]}
                self._sent = True
                await self._forward(*held)
                if self.behind is not None:
                    self._tell()
                    await self.behind()  # in here, so that servers that stop wait for it as for a request
            elif self._sent:
                self.torn = OncewardError("the answer was not recorded, and is broken off before its end; see above")
            else:
                await reply(self._forward, instead)
        except asyncio.CancelledError:
            self.interrupted = True
            raise
        finally:
            self._tell()

    def _end_with_client(self) -> None:
        self._open = True
        self._tell()

    def _tell(self) -> None:
        self._told = True
        if self._telling is not None:
            self._telling.set()

    async def _forward(self, *messages: Message) -> None:
        if self.left:
            if self.ends_early:
                self._knows = True
                raise OSError("the server takes no more of this answer")
            return
        self._sender = sender = asyncio.current_task()
        try:
            for message in messages:
                await self._send(message)
        except OSError:  # the client has left, as servers since ASGI 2.4 say it
            self._gone = True
            if self._open and not self.complete:
                self._knows = True
                raise
        except asyncio.CancelledError:
            if not self.left or sender is None or sender.uncancel():
                raise  # by somebody else, too
        finally:
            self._sender = None
