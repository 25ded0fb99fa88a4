"""The Idempotency-Key header for ASGI applications: Starlette, FastAPI, Litestar, Quart, Django.

A request with a key is handled in a task of its own, which the server's cancellation does not reach: when the client leaves,
or a timeout around this strikes, the handler goes on, and its answer is there for the retry.
"""

import asyncio
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Final, Unpack

from onceward.claim.held import HeldClaim
from onceward.claim.scope import CURRENT
from onceward.core.policy import Options
from onceward.errors import OncewardError
from onceward.http.answer import CUT_SHORT, Answer, Recorded
from onceward.http.body import LONG
from onceward.http.coverage import known_routes
from onceward.http.exchange import Exchange, Unrecorded
from onceward.http.guarded import Guarded
from onceward.http.recording import Recording
from onceward.http.rules import Ask, Passed, Pending, Rules
from onceward.http.scope import Scope as Whose
from onceward.http.trouble import tell
from onceward.results.outcomes import GivenBack
from onceward.web.asgi_cut import BEGAN, UNROUTED, is_unrouted
from onceward.web.asgi_delivery import Delivery
from onceward.web.asgi_messages import (
    Application,
    AsgiRequest,
    Message,
    Receive,
    Scope,
    Send,
    body_of,
    place_of,
    replayed,
    reply,
)
from onceward.web.eager import begin
from onceward.web.starting import built_late, refuse_start

if TYPE_CHECKING:
    from onceward.once import Once

_NOTHING: Final = object()
# Extensions by which an answer's body does not come as messages, or does not end with them. Without them applications send it
# as ever (as the specification wants it), so that it can be recorded.
_EXTENSIONS: Final = ("http.response.pathsend", "http.response.zerocopysend", "http.response.trailers")
# What goes on after its server has given the request up: a loop keeps no task alive by itself.
_RUNNING: Final[set[asyncio.Future[None]]] = set()


class AsgiIdempotency:
    """Middleware that makes an application answer once for each idempotency key.

    In Starlette and FastAPI: ``app.add_middleware(AsgiIdempotency, once=once, rules=Rules(...), wait=5)``. Put what says who the
    caller is (``scope=``), CORS and logging around it, which means to add them after it.

    ``onceward.current()`` returns the claim in the application. A handler may complete it together with its effect, with the
    :class:`onceward.web.Answer` that it is going to give.

    Args:
        app: an ASGI 3 application, under asyncio.
        once: the ledger and the defaults of the policy.
        rules: which requests carry a key, whose it is, and how they are answered. ``Rules(scope=...)`` are all POST and PATCH.
        name: the namespace of the keys, another one for each service that shares the ledger. It is required, unless ``once`` has one.
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
        self._wrong: Exception | None = None
        self._methods = frozenset[str]()
        try:
            self._guarded = Guarded(once, rules, name, wait, options)
            _check_scope(self._guarded.rules)
            self._methods = self._guarded.methods
        except (TypeError, ValueError) as error:
            if not built_late():
                raise
            self._wrong = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection: an HTTP request by the rules; what is none of theirs, and all else, as without this."""
        if scope["type"] != "http" or (method := scope["method"].upper()) not in self._methods:
            if self._wrong is not None:
                await refuse_start(self._wrong, scope, receive, send)
                return
            if scope["type"] == "lifespan" and not self._guarded.coverage.looked:
                send = self._starting(scope, send)
            await self._app(scope, receive, send)
            return
        coverage = self._guarded.coverage
        if not coverage.looked:
            self._look(scope)
        rules = self._guarded.rules
        path, root = place_of(scope)
        if (route := rules.route(method, path)) is None:
            if not coverage.told and not rules.exempts(path):
                coverage.uncovered(method, path)
            await self._app(scope, receive, send)
            return
        body: bytes | None = None
        asked: Pending | Passed | Ask | Answer | None = rules.begin(AsgiRequest(scope, method, path, root), route)
        if isinstance(asked, Pending):
            body, asked = await _read(rules, asked, receive)
        if isinstance(asked, Ask):
            assert body is not None
            await self._answer(asked, scope, body, receive, send)
        elif asked is None:
            await self._app(scope, receive if body is None else replayed(body, receive), send)
        elif isinstance(asked, Answer):
            await reply(send, asked)
        else:
            assert isinstance(asked, Passed)
            with asked:
                await self._app(scope, receive, _watched(asked, send))

    def _starting(self, scope: Scope, send: Send) -> Send:
        """Return a ``send`` for the lifespan that compares the routes when the application has started."""

        async def starting(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                self._look(scope)
            await send(message)

        return starting

    def _look(self, scope: Scope) -> None:
        """Compare the rules' routes with the application's, if these are known."""
        root = scope.get("root_path", "")
        # Within a mounted part the application's paths are not those of the rules.
        app = scope.get("app") if scope.get("app_root_path", root) == root else None
        self._guarded.coverage.look(lambda: known_routes(self._app if app is None else app))

    async def _answer(self, ask: Ask, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Answer a request with a key, by the application or by the record; raises what the application raises."""
        guarded = self._guarded
        key, exchange = guarded.begin(ask)
        try:
            entry = await guarded.guard.enter_async(key, ask.fingerprint)
            answer = None if isinstance(entry, HeldClaim) else exchange.repeated(guarded.recorded(key, entry.value))
        except Exception as error:
            entry, answer = None, exchange.refused(error)
        if isinstance(entry, HeldClaim):
            handling = _Handling(guarded, entry, exchange, body=body, receive=receive, send=send)
            await handling.carry_out(self._app, scope)
        elif answer is not None:
            await reply(send, answer)


class _Handling(Delivery):
    """One request whose key is claimed."""

    def __init__(
        self, guarded: Guarded, claim: HeldClaim, exchange: Exchange, *, body: bytes, receive: Receive, send: Send
    ) -> None:
        super().__init__(body, receive, send, guarded.rules.max_response)
        self._guard = guarded.guard
        self._within = guarded.within
        self._scope: Scope = {}
        self._claim = claim
        self._exchange = exchange

    async def carry_out(self, app: Application, scope: Scope) -> None:
        """Have the application answer it, in a task of its own, which a cancellation does not reach; raises what it raises."""
        context = copy_context()
        try:
            task = begin(self._run(app, scope), context)
            if task is not None:
                try:
                    await asyncio.wait((task,))
                except asyncio.CancelledError:
                    self._leave(task)
                    raise
                finally:
                    if not task.done():
                        _RUNNING.add(task)
                        task.add_done_callback(_RUNNING.discard)
                task.result()
        finally:
            task = None  # it holds its error, which holds this frame
            _adopt(context)
        if self.torn is not None:
            raise self.torn

    def _leave(self, task: asyncio.Future[None]) -> None:
        """Take in that the server has cancelled the request."""
        self.leave()
        task.add_done_callback(self._log)
        if self.ends_early:
            task.cancel()  # nothing is left to be done

    # --- in that task -------------------------------------------------------------------------------------------------

    async def _run(self, app: Application, scope: Scope) -> None:
        claim = self._claim
        self._scope = scope
        CURRENT.set(claim)
        try:
            try:
                self._exchange.begun()
                if scope.get("extensions"):
                    _hide_extensions(scope)
                await app(scope, self.receive, self.send)
                if not self.complete:
                    await self._cut_short()
                    await self.flush()
            except Exception as error:
                if self.ends_early:
                    await self._cut_short()
                elif not self.complete:
                    await self._fail(error)
                raise
            except asyncio.CancelledError:
                if self.ends_early:
                    await self._cut_short()
                elif not self.interrupted:
                    self._guard.drop(claim)
                raise
            except BaseException:
                self._guard.drop(claim)
                raise
            finally:
                CURRENT.set(claim.outer)
                if self.interrupted:
                    await self.conclude()
        except (KeyboardInterrupt, SystemExit) as interrupt:
            self.torn = interrupt  # raised in a task it would end the loop, and the server would not hear of it

    async def settle(self) -> Answer | None:
        """Record the answer that the application has just ended; return what its client gets instead, or None."""
        exchange = self._exchange
        assert self.status is not None
        began = None if self.status < 300 else self._began
        outcome: Recorded | Exception
        try:
            if self.kept is None:
                outcome = exchange.headed(self.status, self.headers, f"its body has more than {self.most} bytes", began)
            elif not self.whole:
                outcome = exchange.headed(self.status, self.headers, CUT_SHORT, began)
            else:
                answer = (self.status, self.headers, b"".join(self.kept))
                outcome = exchange.answered(
                    tuple.__new__(Answer, answer), began
                )  # what Answer(...) does, in half the time
        except (Unrecorded, GivenBack) as error:
            outcome = error
        recording = Recording(self._guard, self._claim, outcome, self._within)
        try:
            await recording.settle_async()
        except Exception as error:
            return exchange.refused(error)
        self.behind = recording.behind_async if recording.pending else None
        return None

    async def _fail(self, error: Exception) -> None:
        """Record that the application has raised ``error`` before its answer was complete."""
        recording = Recording(self._guard, self._claim, self._exchange.raised(error, self._began), self._within)
        try:
            await recording.settle_async()
        except Exception as trouble:  # the application's own exception goes on
            tell(self._claim.record.key, trouble)
        if recording.pending:
            task = asyncio.ensure_future(recording.behind_async())
            _RUNNING.add(task)
            task.add_done_callback(_RUNNING.discard)

    async def _cut_short(self) -> None:
        """Record an answer of which the application has sent the beginning only; without one, give the key back."""
        outcome: Recorded | Exception
        try:
            if self.status is None:
                outcome = Unrecorded("ended without an answer")
            else:
                outcome = self._exchange.headed(self.status, self.headers, CUT_SHORT, self._began)
        except (Unrecorded, GivenBack) as error:
            outcome = error
        recording = Recording(self._guard, self._claim, outcome, self._within)
        try:
            await recording.settle_async()
        except OncewardError as error:
            self._exchange.refused(error)  # which logs it
        if recording.pending:
            await recording.behind_async()

    @property
    def _began(self) -> bool | None:
        """Whether the endpoint began; None when nobody can tell."""
        known: bool | None = self._scope.get(BEGAN)
        if known is not None:
            return known
        if self.invalid or (self.status in UNROUTED and is_unrouted(self._scope)):
            return False
        return None

    def _log(self, task: asyncio.Future[None]) -> None:
        error = None if task.cancelled() else task.exception() or self.torn
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise error  # to who runs the loop, for nobody else is there
        if error is not None:
            import logging

            logging.getLogger("onceward").error(
                "%s: raised after its client had left", self._claim.record.key, exc_info=error
            )


async def _read(rules: Rules, pending: Pending, receive: Receive) -> tuple[bytes | None, Ask | Answer | None]:
    """Return a request's body, and what the rules make of the request with it."""
    body = await body_of(receive, rules.max_request)
    if body is None:
        return None, rules.unreadable("its sender has left")  # what is around this has an answer then, too
    if len(body) > LONG:
        return body, await asyncio.to_thread(rules.ask, pending, body)
    return body, rules.ask(pending, body)


def _adopt(context: Context) -> None:
    """Set the context variables here as the application has left them there."""
    for variable, value in context.items():
        if variable.get(_NOTHING) is not value and variable is not CURRENT:  # the claim is the application's alone
            variable.set(value)


def _check_scope(rules: Rules) -> None:
    if rules.scope is Whose.HOST:
        raise ValueError("scope=Scope.HOST: ASGI servers authenticate nobody; say otherwise whose keys they are")


def _watched(passed: Passed, send: Send) -> Send:
    """Return a ``send`` that takes in the status of the answer to a request that has passed."""

    async def watching(message: Message) -> None:
        if message["type"] == "http.response.start":
            passed.answered(message["status"])
        await send(message)

    return watching


def _hide_extensions(scope: Scope) -> None:
    extensions = scope["extensions"]
    if any(name in extensions for name in _EXTENSIONS):
        scope["extensions"] = {name: what for name, what in extensions.items() if name not in _EXTENSIONS}
