"""What an ASGI application receives and sends while it holds a claim.

Its answer passes a gate (``http/gate.py``): parts go to the client as they come, but the end waits for the record.

Many frameworks cancel the handler when the client leaves, in the middle of its effect. So the application is not told:
``receive`` waits until the answer is complete. The exception are answers whose body is not replayed, because their rest is
useless: server-sent events, and bodies longer than the rules record.
"""

import asyncio
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Generator
from contextvars import Context, copy_context
from types import CoroutineType, FrameType, TracebackType
from typing import Any, Final

from onceward.claim.lease import CURRENT
from onceward.http.answer import AnswerGate
from onceward.http.held import HeldRequest
from onceward.web.asgi_messages import DISCONNECT, Message, Receive, Scope, Send, lines_of

BEGAN: Final = (
    "onceward.began"  # in ASGI's scope of a request whose key is held: whether the endpoint began; None if unknown
)
# In ASGI's scope of a request whose key is held: the store, the key and the claim. Who sends a copy of the scope sends another key.
HELD: Final = "onceward.held"
# In ASGI's scope while the endpoint may have had its effect and nobody knows its outcome: the key then stays claimed. A proxy sets it.
MAY_HAVE_RUN: Final = "onceward.may_have_run"
# A router answers these itself. Other statuses prove nothing: inner middleware may route a copy of the scope.
UNROUTED: Final = frozenset({404, 405})
_FAR: Final = 60  # frames between the server's send and the middleware, at most
# Exception (module, name) → the framework's function (module, prefix, name) that raises it before it calls the endpoint.
_INVALID: Final = {
    ("fastapi.exceptions", "RequestValidationError"): ("fastapi.routing", "fastapi.", "app"),
    ("litestar.exceptions.http_exceptions", "ValidationException"): (
        "litestar.routes.http",
        "litestar.",
        "_call_handler_function",
    ),
}


def is_by_base(frame: FrameType | None) -> bool:
    """Return whether a ``BaseHTTPMiddleware`` of Starlette sends a message in ``frame``."""
    base = sys.modules.get("starlette.middleware.base")
    for _ in range(_FAR):
        if frame is None or base is None:
            return False
        if frame.f_code is base.BaseHTTPMiddleware.__call__.__code__:
            return True
        frame = frame.f_back
    return False


def is_invalid(error: BaseException | None) -> bool:
    """Return whether the handled exception says that the request is not valid, so that its endpoint has not begun.

    An endpoint can raise the same exception after its effect. So it counts only if the framework itself raised it.
    """
    if error is None:
        return False
    for kind in type(error).__mro__:
        place = _INVALID.get((kind.__module__, kind.__name__))
        if place is not None:
            return _is_raised_within(error.__traceback__, *place)
    return False


def _is_raised_within(trace: TracebackType | None, module: str, prefix: str, function: str) -> bool:
    """Return whether an exception was raised in a function or deeper, with only the framework's own frames in between."""
    within = False
    while trace is not None:
        name, code = trace.tb_frame.f_globals.get("__name__", ""), trace.tb_frame.f_code
        if name == module and code.co_name == function:
            within = True
        elif within and not name.startswith(prefix):
            return False
        trace = trace.tb_next
    return within


def is_unrouted(scope: Scope) -> bool:
    """Return whether a Starlette application has found no endpoint for a request."""
    applications = sys.modules.get("starlette.applications")
    if applications is None or "endpoint" in scope or not isinstance(app := scope.get("app"), applications.Starlette):
        return False
    if "router" not in scope:
        return False  # inner middleware has answered, or passed on a copy that may have an endpoint
    default = app.router.default  # a custom default is an endpoint
    return bool(default == app.router.not_found)


class AsgiDelivery(ABC):
    """The messages between an application and its client.

    Attributes:
        interrupted: whether the application's own timeout or task group cancelled it while its answer was recorded. These can
            cancel every await inside, repeatedly. So await :meth:`conclude` after the application ends.
        fault: raise it to the server after the application ends. It breaks off an answer whose end the client must not get, or
            it is the interrupt that ended the application. Else None.
    """

    gate: AnswerGate | None = None  # None before the answer begins
    complete = False  # whether the application has sent its answer to the end
    whole = True  # whether that end is real: inner middleware may end an answer that was broken off
    waits = False  # whether that end waits until the application returns or raises, because only this shows whether it is real
    invalid = False  # whether the framework's answer says that the request is not valid
    interrupted = False
    server_left = False  # whether the server has given up the request and takes no more messages
    fault: BaseException | None = None
    _sent = False  # whether the client has a part of it
    _open = False  # whether the application may know that the client has left
    _client_left = False  # whether the client has left
    _knows = False  # whether the application was told, before its answer was complete
    _told = False  # whether the application can be told about the client
    _telling: asyncio.Event | None = None  # set when that is so, if something waits for it
    _sender: asyncio.Task[object] | None = None  # the task that is sending to the server

    def __init__(self, held: HeldRequest, *, body: bytes, receive: Receive, send: Send) -> None:
        self._request = held
        self._body: bytes | None = body
        self._receive = receive
        self._send = send
        self._held: list[Message] = []
        self._context = None if held.claim.story is None else copy_context()  # without the span that the handler enters

    @abstractmethod
    async def conclude(self) -> None:
        """Record the complete answer, and send its end, which is held back meanwhile."""

    @property
    def ends_early(self) -> bool:
        """Whether the application can stop in the middle of its answer, because nobody takes the rest."""
        return self._open and not self.complete and (self._client_left or self.server_left)

    def leave(self) -> None:
        """Note that the server takes no more messages. A message on its way is cancelled, as it might wait for ever."""
        self.server_left = True
        if self._sender is not None:
            self._sender.cancel()

    async def receive(self) -> Message:
        """Return the request, and after that whether the client has left."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if not self._told:
            self._telling = self._telling or asyncio.Event()
            await self._telling.wait()
        if self.complete or self._client_left or self.server_left:
            self._knows = True
            return {"type": DISCONNECT}
        message: Message = await self._outside(self._receive())
        if message["type"] == DISCONNECT:
            self._client_left = self._knows = True
        return message

    async def send(self, message: Message) -> None:
        """Take in a message of the application."""
        kind = message["type"]
        gate = self.gate
        if gate is None:
            if kind == "http.response.start":
                self._begin(message)
                return
        elif kind == "http.response.body" and not self.complete:
            self._held.append(message)
            body = message.get("body", b"")
            gate.take(body)
            if gate.ends_with_client and not self._open:
                self._end_with_client()
            if not message.get("more_body", False):
                self.whole = gate.cut is None and (gate.has_proof or not self._knows)
                self.complete = True
                # A BaseHTTPMiddleware always ends an answer by an empty message, even if the endpoint fails in the middle of it, and
                # raises only after that.
                self.waits = self.whole and not (body or gate.has_proof) and is_by_base(sys._getframe())
                if self.waits:
                    self._tell()
                else:
                    await self.conclude()
            elif gate.size != gate.length:
                await self.flush()
            return
        if self.interrupted:
            return  # the framework's answer to the interrupt; the application has already answered
        await self._forward(message)  # an extension's message, or a mistake that the server reports

    async def flush(self) -> None:
        """Send the held messages."""
        if self._held:
            held, self._held, self._sent = self._held, [], True
            await self._forward(*held)

    def _begin(self, message: Message) -> None:
        message = {**message, "headers": list(message.get("headers", ()))}  # it may be an iterator
        self._held.append(message)
        self.gate = AnswerGate(
            message["status"], lines_of(message["headers"]), self._request.guarded.rules.max_response
        )
        if 400 <= message["status"] < 500:
            self.invalid = is_invalid(sys.exception())
        if self.gate.is_events:
            self._end_with_client()

    def _end_with_client(self) -> None:
        self._open = True
        self._tell()

    def _tell(self) -> None:
        self._told = True
        if self._telling is not None:
            self._telling.set()

    async def _forward(self, *messages: Message) -> None:
        if self.server_left:
            if self.ends_early:
                self._knows = True
                raise OSError("the server takes no more of this answer")
            return
        self._sender = sender = asyncio.current_task()
        try:
            for message in messages:
                await self._outside(self._send(message))
        except OSError:  # the client has left (ASGI 2.4 and later)
            self._client_left = True
            if self._open and not self.complete:
                self._knows = True
                raise
        except asyncio.CancelledError:
            if not self.server_left or sender is None or sender.uncancel():
                raise  # somebody else cancelled, too
        finally:
            self._sender = None

    async def _outside(self, what: Awaitable[Any]) -> Any:
        """Await something of the server's outside of the claim.

        What a server reads from a connection later runs in a copy of the context in which it was told to read. In the handler's, the
        connection's next request would have the handler's claim and span.
        """
        if self._context is not None:
            return await _Within(self._context, what)
        inner = CURRENT.get()
        CURRENT.set(self._request.claim.outer)
        try:
            return await what
        finally:
            CURRENT.set(inner)


class _Within:
    """Awaits something in a context of its own."""

    def __init__(self, context: Context, what: Awaitable[object]) -> None:
        self._context, self._what = context, what

    async def _plain(self) -> object:
        return await self._what

    def __await__(self) -> Generator[Any, Any, Any]:
        # A server's own awaitable can give an iterator without send and throw (PEP 492).
        steps: Any = self._what if type(self._what) is CoroutineType else self._plain()
        step, given = steps.send, None
        while True:
            try:
                waits_for = self._context.run(step, given)
            except StopIteration as end:
                return end.value
            try:
                step, given = steps.send, (yield waits_for)
            except BaseException as error:
                step, given = steps.throw, error
