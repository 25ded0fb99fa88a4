"""The Idempotency-Key header for ASGI applications: Starlette, FastAPI, Litestar, Quart, Django.

A request with a key is handled in a task of its own, which the server's cancellation does not reach: when the client leaves,
or a timeout around this strikes, the handler goes on, and its answer is there for the retry.
"""

import asyncio
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Final, NamedTuple, Unpack

from onceward.claim import CURRENT, Claim
from onceward.core.policy import Options
from onceward.errors import OncewardError
from onceward.web.answer import Answer
from onceward.web.asgi_delivery import Delivery
from onceward.web.asgi_messages import Application, Receive, Scope, Send, body_of, place_of, replayed, reply, request_of
from onceward.web.exchange import Unrecorded
from onceward.web.guarded import Guarded
from onceward.web.rules import Ask, Pending, Rules

if TYPE_CHECKING:
    from onceward.once import Once

_CUT_SHORT: Final = "it was not sent to its end"
_NOTHING: Final = object()
# Extensions by which an answer's body does not come as messages, or does not end with them. Without them applications send it
# as ever (as the specification wants it), so that it can be recorded.
_EXTENSIONS: Final = ("http.response.pathsend", "http.response.zerocopysend", "http.response.trailers")
# What goes on after its server has given the request up: a loop keeps no task alive by itself.
_RUNNING: Final[set[asyncio.Task[None]]] = set()


class AsgiIdempotency:
    """Middleware that makes an application answer once for each idempotency key.

    In Starlette and FastAPI: ``app.add_middleware(AsgiIdempotency, once=once, rules=Rules(...), wait=5)``. Put what says who the
    caller is (``scope=``), CORS and logging around it, which means to add them after it.

    ``onceward.current()`` returns the claim in the application. A handler may complete it together with its effect, with the
    :class:`onceward.web.Answer` that it is going to give.

    Args:
        app: an ASGI 3 application, under asyncio.
        once: the ledger and the defaults of the policy.
        rules: which requests carry a key and how they are answered; by default ``Rules()``: all POST and PATCH, required.
        name: the namespace of the keys; by default that of ``once``, or else "http".
        wait: seconds for which a request waits for the answer to the one before it; without it, it gets a 409 at once.
        **options: see :class:`onceward.Policy`; ``cache`` means nothing here.

    Raises:
        TypeError, ValueError: an option is not valid.
    """

    def __init__(
        self,
        app: Application,
        once: "Once",
        rules: Rules | None = None,
        *,
        name: str | None = None,
        wait: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        self._app = app
        self._guarded = Guarded(once, rules, name, wait, options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection: an HTTP request by the rules; what is none of theirs, and all else, as without this."""
        if scope["type"] != "http" or scope["method"].upper() not in self._guarded.methods:
            await self._app(scope, receive, send)
            return
        asked, body = await self._ask(scope, receive)
        if asked is None:
            await self._app(scope, receive if body is None else replayed(body, receive), send)
        elif isinstance(asked, Answer):
            await reply(send, asked)
        else:
            assert body is not None
            await _handled(_Handling(self._app, self._guarded, asked, _Call(scope, body, receive, send)))

    async def _ask(self, scope: Scope, receive: Receive) -> tuple[Ask | Answer | None, bytes | None]:
        """Return what the request asks for, and its body if it was read."""
        rules = self._guarded.rules
        if rules.route(scope["method"].upper(), place_of(scope)[0]) is None:
            return None, None  # before its headers are decoded
        pending = rules.begin(request_of(scope))
        if not isinstance(pending, Pending):
            return pending, None
        body = await body_of(receive, rules.max_request)
        if body is None:
            return rules.unreadable("its sender has left"), None  # for what is around this
        return rules.ask(pending, body), body


class _Call(NamedTuple):
    """What the server has called the application with, and the body that was received."""

    scope: Scope
    body: bytes
    receive: Receive
    send: Send


class _Handling:
    """One request with a key."""

    def __init__(self, app: Application, guarded: Guarded, ask: Ask, call: _Call) -> None:
        self._app = app
        self._guarded = guarded
        self._guard = guarded.guard
        self._key, self._exchange = guarded.begin(ask)
        self._fingerprint = ask.fingerprint
        self._call = call
        self._delivery = Delivery(call.body, call.receive, call.send, guarded.rules.max_response, self._settle)
        self._claim: Claim | None = None

    async def run(self) -> None:
        """Answer the request, by the application or by the record; raises what the application raises."""
        claim: Claim | None = None
        try:
            entry = await self._guard.enter_async(self._key, self._fingerprint)
            if isinstance(entry, Claim):
                claim = entry
                answer = None
            else:
                answer = self._exchange.repeated(self._guarded.recorded(self._key, entry.value))
        except Exception as error:  # noqa: BLE001 - translated, or raised there
            answer = self._exchange.refused(error)
        if claim is not None:
            await self._carry_out(claim)
        elif answer is not None:
            await reply(self._call.send, answer)

    def leave(self, task: asyncio.Task[None]) -> None:
        """Take in that the server has cancelled the request; ``task`` runs it."""
        self._delivery.leave()
        task.add_done_callback(self._log)
        if self._claim is None or self._delivery.ends_early:
            task.cancel()  # nothing was begun, or nothing is left to be done

    # --- the application ----------------------------------------------------------------------------------------------

    async def _carry_out(self, claim: Claim) -> None:
        self._claim = claim
        CURRENT.set(claim)
        delivery = self._delivery
        try:
            self._exchange.begun()
            _hide_extensions(self._call.scope)
            with self._exchange.handling():
                await self._app(self._call.scope, delivery.receive, delivery.send)
            if not delivery.complete:
                await self._cut_short(claim)
                await delivery.flush()
        except Exception as error:
            if delivery.ends_early:
                await self._cut_short(claim)
            elif not delivery.complete:
                await self._guard.fail_async(claim, error)
            raise
        except asyncio.CancelledError:
            if delivery.ends_early:
                await self._cut_short(claim)
            elif not delivery.interrupted:
                self._guard.drop(claim)
            raise
        except BaseException:
            self._guard.drop(claim)
            raise
        finally:
            CURRENT.set(claim.outer)
            if delivery.interrupted:
                await delivery.conclude()
        if delivery.torn is not None:
            raise delivery.torn

    async def _settle(self) -> Answer | None:
        """Record the answer that the application has just ended; return what its client gets instead, or None."""
        claim, delivery, exchange = self._claim, self._delivery, self._exchange
        assert claim is not None
        assert delivery.status is not None
        try:
            body = delivery.body
            if body is None:
                most = self._guarded.rules.max_response
                record = exchange.headed(delivery.status, delivery.headers, f"its body has more than {most} bytes")
            else:
                record = exchange.answered(Answer(delivery.status, delivery.headers, body))
            await self._guard.finish_async(claim, record)
        except Unrecorded as error:
            await self._guard.fail_async(claim, error)
        except Exception as error:  # noqa: BLE001 - translated, or raised there
            return exchange.refused(error)
        return None

    async def _cut_short(self, claim: Claim) -> None:
        """Record an answer of which the application has sent the beginning only; without one, give the key back."""
        delivery = self._delivery
        if delivery.status is None:
            await self._guard.fail_async(claim, Unrecorded("ended without an answer"))
            return
        try:
            record = self._exchange.headed(delivery.status, delivery.headers, _CUT_SHORT)
            await self._guard.finish_async(claim, record)
        except Unrecorded as error:
            await self._guard.fail_async(claim, error)
        except OncewardError as error:
            self._exchange.refused(error)  # which logs it

    def _log(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            import logging  # noqa: PLC0415 - 5 ms at a cold start, for what should not happen

            logging.getLogger("onceward").error("%s: raised after its client had left", self._key, exc_info=error)


async def _handled(handling: _Handling) -> None:
    """Run it in a task of its own, and wait for that."""
    loop, context = asyncio.get_running_loop(), copy_context()
    through: asyncio.Future[None] = loop.create_future()
    task = loop.create_task(_run(handling, through), context=context)
    try:
        await through  # asyncio.wait((task,)) would do, for 10 µs more
    except asyncio.CancelledError:
        handling.leave(task)
        raise
    finally:
        if not task.done():
            _RUNNING.add(task)
            task.add_done_callback(_RUNNING.discard)
    _adopt(context)
    task.result()


async def _run(handling: _Handling, through: asyncio.Future[None]) -> None:
    try:
        await handling.run()
    finally:
        if not through.done():
            through.set_result(None)


def _adopt(context: Context) -> None:
    """Set the context variables here as the application has left them there."""
    for variable, value in context.items():
        if variable.get(_NOTHING) is not value:
            variable.set(value)


def _hide_extensions(scope: Scope) -> None:
    extensions = scope.get("extensions")
    if extensions and any(name in extensions for name in _EXTENSIONS):
        scope["extensions"] = {name: what for name, what in extensions.items() if name not in _EXTENSIONS}
