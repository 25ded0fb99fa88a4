"""One ASGI request whose key is claimed: the application answers it in a separate task.

The server's cancellation does not reach that task. If the client leaves or a timeout ends the request, the handler continues,
and a retry gets its answer.
"""

import asyncio
import sys
from collections.abc import Coroutine, Generator
from contextvars import Context, copy_context
from types import coroutine
from typing import Any, Final

from onceward.claim.called import enter_span, leave_span
from onceward.claim.lease import CURRENT
from onceward.errors import OncewardError
from onceward.http.answer import CUT_SHORT, PENDING, Answer, Recorded
from onceward.http.guarded import Unrecorded
from onceward.observe.logs import logger
from onceward.web.asgi_delivery import BEGAN, HELD, MAY_HAVE_RUN, UNROUTED, AsgiDelivery, is_unrouted
from onceward.web.asgi_messages import Application, Scope, reply
from onceward.web.sending import keep

# An eager task starts at once, and needs no turn of the loop if it never waits.
_EAGER: Final[dict[str, Any]] = {"eager_start": True} if sys.version_info >= (3, 12) else {}
_PENDING: Final = (PENDING[0].lower().encode(), PENDING[1].encode())
# With these extensions an answer's body does not come as messages, or does not end with them. Without them, ASGI requires
# that applications send messages, which can be recorded.
_EXTENSIONS: Final = ("http.response.pathsend", "http.response.zerocopysend", "http.response.trailers")


class AsgiHandling(AsgiDelivery):
    """An application's answer to a request whose key is claimed."""

    _scope: Scope
    _waiter: "asyncio.Future[None] | None" = None  # done when the application has ended

    async def carry_out(self, app: Application, scope: Scope) -> None:
        """Let the application answer in a task that a cancellation does not reach; raises what it raises."""
        context = copy_context()
        loop = asyncio.get_running_loop()
        task: asyncio.Task[None] | None = None
        try:
            task = begin(self._run(app, scope), loop, context)
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

    async def _run(self, app: Application, scope: Scope) -> None:
        claim = self._request.claim
        self._scope = scope
        try:
            if not _EAGER:
                await _first_step()
            CURRENT.set(claim)
            scope[BEGAN], scope[HELD] = None, claim
            enter_span(claim)
            try:
                if scope.get("extensions"):
                    _hide_extensions(scope)
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
        """As :meth:`AsgiDelivery.conclude`."""
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


def begin(steps: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop, context: Context) -> asyncio.Task[None]:
    """Return the task of a handler in ``context``. From Python 3.12 on it begins at once."""
    if not _EAGER:
        steps.send(None)  # to its first step: even a task that is cancelled before it begins then tells its end
    return asyncio.Task(steps, loop=loop, name="onceward-http", context=context, **_EAGER)


@coroutine
def _first_step() -> Generator[None, None, None]:
    yield


def _hide_extensions(scope: Scope) -> None:
    extensions = scope["extensions"]
    if any(name in extensions for name in _EXTENSIONS):
        scope["extensions"] = {name: what for name, what in extensions.items() if name not in _EXTENSIONS}
