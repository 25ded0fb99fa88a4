"""One ASGI request whose key is claimed: the application answers it in a separate task.

The server's cancellation does not reach that task. If the client leaves or a timeout ends the request, the handler continues,
and a retry gets its answer.

Its answer passes a gate (``http/answer.py``): parts go to the client as they come, but the end waits for the record.
Many frameworks cancel the handler when the client leaves, in the middle of its effect. So the application is not told:
``receive`` waits until the answer is complete. The exception are answers whose body is not replayed, because their rest is
useless: server-sent events, and bodies longer than the rules record.
"""

import asyncio
import sys
from collections.abc import Awaitable
from contextvars import copy_context
from typing import Any, Final

from onceward.claim.called import enter_span, leave_span
from onceward.claim.lease import CURRENT
from onceward.errors import OncewardError
from onceward.http.answer import CUT_SHORT, PENDING, Answer, AnswerGate, Recorded
from onceward.http.guarded import Unrecorded
from onceward.http.held import HeldRequest
from onceward.observe.logs import logger
from onceward.web.asgi_began import BEGAN, HELD, MAY_HAVE_RUN, UNROUTED, is_by_base, is_invalid, is_unrouted
from onceward.web.asgi_messages import (
    DISCONNECT,
    Application,
    Message,
    Receive,
    Scope,
    Send,
    Within,
    hide_extensions,
    lines_of,
    reply,
)
from onceward.web.sending import EAGER, begin, first_step, keep

_PENDING: Final = (PENDING[0].lower().encode(), PENDING[1].encode())


class AsgiHandling:
    """An application's answer to a request whose key is claimed, and its messages to the client.

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
    _waiter: "asyncio.Future[None] | None" = None  # done when the application has ended

    def __init__(self, held: HeldRequest, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        self._request = held
        self._scope = scope
        self._body: bytes | None = body
        self._receive = receive
        self._send = send
        self._held: list[Message] = []
        self._context = None if held.claim.story is None else copy_context()  # without the span that the handler enters

    async def carry_out(self, app: Application) -> None:
        """Let the application answer in a task that a cancellation does not reach; raises what it raises."""
        context = copy_context()
        loop = asyncio.get_running_loop()
        task: asyncio.Task[None] | None = None
        try:
            task = begin(self._run(app), loop, context)
            if not task.done():
                self._waiter = loop.create_future()  # faster by 9 µs than asyncio.wait
                try:
                    await self._waiter
                except asyncio.CancelledError:
                    self._leave(task)
                    raise
                finally:
                    if not task.done():
                        keep(task)
            task.result()
        finally:
            del task  # it holds its error, which holds this frame
        if self.fault is not None:
            raise self.fault

    def _leave(self, task: asyncio.Future[None]) -> None:
        """Note that the server has cancelled the request."""
        self.leave()
        task.add_done_callback(self._log)
        if self.ends_early:
            task.cancel()  # nothing is left to be done

    async def _run(self, app: Application) -> None:
        claim, scope = self._request.claim, self._scope
        try:
            if not EAGER:
                await first_step()
            CURRENT.set(claim)
            scope[BEGAN], scope[HELD] = None, claim
            enter_span(claim)
            try:
                if scope.get("extensions"):
                    hide_extensions(scope)
                await app(scope, self.receive, self.send)
                if self.waits:
                    await self.conclude()
                elif not self.complete:
                    await self._cut_short()
                    await self.flush()
            except BaseException as error:
                await self._fail(error)
                raise
            finally:
                CURRENT.set(claim.outer)  # else the context keeps the claim alive
                claim.left = True
                leave_span(claim)
                if self.interrupted:
                    await self.conclude()
        except (KeyboardInterrupt, SystemExit) as interrupt:
            self.fault = interrupt  # an interrupt raised in a task ends the loop without the server
        finally:
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    async def _fail(self, error: BaseException) -> None:
        """Record how the application failed, or leave its key claimed if it was interrupted."""
        if self.waits and not isinstance(error, GeneratorExit):  # a closed coroutine must not await
            self.whole = False
            await self.conclude()
        if isinstance(error, Exception | asyncio.CancelledError) and self.ends_early:
            await self._cut_short()
        elif isinstance(error, Exception):
            if not self.complete:
                await self._record(error)
        elif not self.interrupted or not isinstance(error, asyncio.CancelledError):
            self._request.claim.drop()

    async def conclude(self) -> None:
        """Record the complete answer, and send its end, which is held back meanwhile."""
        self.waits = False
        request, gate = self._request, self.gate
        assert gate is not None
        instead: Answer | None = None
        try:
            if not self._stays_claimed():
                request.judge.began = None if gate.status < 300 else self._began
                outcome = request.judge.outcome(gate.answer, None if self.whole else CUT_SHORT)
                instead = await request.settle_async(outcome)
            if instead is None:
                held, self._held = self._held, []
                if request.pending and not self._sent:
                    held[0] = {**held[0], "headers": [*held[0]["headers"], _PENDING]}
                self._sent = True
                await self._forward(*held)
                if request.pending:
                    self._tell()
                    await request.behind_async()  # inside the request, so that a stopping server waits for it
            elif self._sent:
                self.fault = OncewardError("the answer was not recorded, and is broken off before its end; see above")
            else:
                await reply(self._forward, instead)
        except asyncio.CancelledError:
            self.interrupted = True
            raise
        finally:
            self._tell()

    async def _record(self, error: Exception) -> None:
        """Record that the application has raised ``error`` before its answer was complete."""
        if self._stays_claimed():
            return
        request = self._request
        request.judge.began = self._began
        await request.settle_async(request.judge.outcome_of_error(error), raised=True)
        if request.pending:
            keep(asyncio.ensure_future(request.behind_async()))

    async def _cut_short(self) -> None:
        """Record an answer that the application has only begun; without one, give the key back."""
        if self._stays_claimed():
            return
        request = self._request
        outcome: Recorded | Exception = Unrecorded("ended without an answer")
        if self.gate is not None:
            request.judge.began = self._began
            outcome = request.judge.outcome(self.gate.answer, CUT_SHORT)
        await request.settle_async(outcome)
        if request.pending:
            await request.behind_async()

    def _stays_claimed(self) -> bool:
        """Leave the key claimed to its lease's end if nobody knows the outcome of an effect; tell whether that is so."""
        if not self._scope.get(MAY_HAVE_RUN):
            return False
        self._request.claim.drop()
        return True

    @property
    def _began(self) -> bool | None:
        """Whether the endpoint began; None if unknown."""
        began: bool | None = self._scope.get(BEGAN)
        if began is not None:
            return began
        if self.invalid or (self.gate is not None and self.gate.status in UNROUTED and is_unrouted(self._scope)):
            return False
        return None

    def _log(self, task: asyncio.Future[None]) -> None:
        error = None if task.cancelled() else task.exception() or self.fault
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise error  # only the loop's runner can take it
        if error is not None:
            logger().error("%s: raised after its client had left", self._request.claim.record.key, exc_info=error)

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
            return await Within(self._context, what)
        inner = CURRENT.get()
        CURRENT.set(self._request.claim.outer)
        try:
            return await what
        finally:
            CURRENT.set(inner)
