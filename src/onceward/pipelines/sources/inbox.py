"""Runs the source ``webhook``: an endpoint under uvicorn, and the events that the ledger keeps until they are handled.

Each event has two records. That of the inbox, ``NAME.webhook:ID``, is written before the answer, and keeps the event. That of the
pipeline is as for any other source. The inbox's claim is held until the pipeline is done with the event, so an event whose process
was killed lapses there. Every process looks for such events.
"""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final, cast

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from onceward.batch.outcomes import BatchOutcome
from onceward.claim.claim import Claim
from onceward.claim.completer import Completer, keeping
from onceward.claim.inputs import LONGEST
from onceward.consumers.broker import BrokerError
from onceward.consumers.callers import unless_set
from onceward.consumers.dead_letters import is_unhandled
from onceward.consumers.delivery import Delivery
from onceward.core.policy import Options
from onceward.errors import InputNotKept, Mismatch, OncewardError, StoreError
from onceward.observe.logs import logger
from onceward.pipelines.flow import Flow, FlowRuns
from onceward.results.outcomes import describe
from onceward.service.heads import TimedHeads
from onceward.web.asgi_messages import body_of
from onceward.web.webhooks.events import WebhookEvent, WebhookVerifier
from onceward.web.webhooks.receiver import WebhookReceiver

SOURCE: Final = "webhook"
_ARRIVAL: Final = 30.0  # seconds in which a body must arrive
_MOST: Final = 1000  # events in this process; more are told to come later
_LOOK: Final = 5.0  # seconds between two looks for events of killed processes
_RELEASED: Final = (
    30.0  # seconds after which an event that a look has failed with, or a person has unparked, is tried again
)
_SWEEPING: ContextVar[bool] = ContextVar("onceward-webhook-sweep", default=False)


class _QuietServer(uvicorn.Server):
    """Leaves signals to whoever runs the pipeline."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class WebhookRuns(FlowRuns):
    """One run of the source.

    Attributes:
        port: where it listens, once it does; 0 before.
    """

    def __init__(
        self, flow: Flow, verifier: "WebhookVerifier", *, host: str, port: int, path: str, with_keys: bool
    ) -> None:
        super().__init__(flow)
        self._host, self._port, self._path = host, port, path
        # The pipeline's own claim counts the attempts; that of the inbox only keeps the event.
        options: dict[str, Any] = {"on_lapse": "retry", "max_attempts": None}
        options |= {name: flow.options[name] for name in ("lease", "retention") if name in flow.options}
        if with_keys:
            options["fingerprint"] = lambda event: event.data
        policy = cast("Options", options)  # the fingerprint goes to the decorator, too
        self._receiver = WebhookReceiver(
            flow.built.once, verifier, self._handle, name=f"{self.name}.{SOURCE}", accept=True, **policy
        )
        self._server: _QuietServer | None = None
        self.port = 0

    def end(self) -> None:
        """Take no event more."""
        super().end()
        if self._server is not None:
            self._server.should_exit = True

    async def run_async(self, *, until_empty: bool = False) -> None:
        """Serve until :meth:`stop`; with ``until_empty`` only handle what killed processes have left."""
        self.begin()
        if until_empty:
            await self._sweep(0.0)
            return
        if self.stopping.is_set():
            return
        with self._listening() as listener:
            self.port = listener.getsockname()[1]
            config = uvicorn.Config(
                self._application(),
                http=TimedHeads,
                ws="none",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                lifespan="off",
                timeout_graceful_shutdown=30,
            )
            self._server = _QuietServer(config)
            looks = asyncio.create_task(self._look())
            logger().info("pipeline %s: takes events at http://%s:%d%s", self.name, self._host, self.port, self._path)
            try:
                await self._server.serve(sockets=[listener])
                self.stopping.set()
                await self.tasks.end(self.grace)
            finally:
                self.stopping.set()
                looks.cancel()
                await self.tasks.end(0.0)  # their keys stay claimed, and lapse
                await asyncio.gather(looks, return_exceptions=True)

    def _listening(self) -> socket.socket:
        host, port = self._host, self._port
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, port), family=family, backlog=2048)
        except OSError as error:
            raise BrokerError(
                f"pipeline {self.name} cannot listen: {error.strerror or error}. Correct its host: and port:",
                gone=True,
            ) from error

    def _application(self) -> Starlette:
        async def receive(request: Request) -> Response:
            if len(self.tasks) >= _MOST:
                return PlainTextResponse("too many events wait", 503, {"Retry-After": "5"})
            body = None
            with suppress(TimeoutError):
                async with asyncio.timeout(_ARRIVAL):
                    body = await body_of(request.receive, LONGEST)
            if body is None:
                return PlainTextResponse("the event did not arrive in time", 408, {"Connection": "close"})
            if len(body) > LONGEST:
                return PlainTextResponse(f"an event takes at most {LONGEST} bytes", 413)
            try:
                lines = {name: ", ".join(request.headers.getlist(name)) for name in request.headers}  # RFC 9110, 5.3
                answer = await self._receiver.answer_async(lines, body)
            except InputNotKept as error:
                return PlainTextResponse(str(error), 413)
            except Mismatch:
                return PlainTextResponse("this Idempotency-Key came before with another body", 422)
            return Response(answer.body, answer.status, dict(answer.headers))

        return Starlette(
            routes=[
                Route(self._path, receive, methods=["POST"]),
                Route("/healthz", PlainTextResponse("ok"), methods=["GET"]),
            ]
        )

    async def _handle(self, event: WebhookEvent, claim: Claim) -> None:
        """Handle an event under the inbox's claim, and try again until the pipeline is done with it."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            await unless_set(self.stopping, self.flow.ready())
            if not self.stopping.is_set():
                outcome = await self.handled(lambda: self._delivery(event), again=not _SWEEPING.get())
                if outcome.ok:
                    return
                if is_unhandled(outcome):
                    await claim.park_async(_reason(outcome))
                if is_unhandled(outcome) or _SWEEPING.get():
                    raise OncewardError(f"{claim.record.key}: {_reason(outcome)}") from outcome.error
            raise asyncio.CancelledError  # so that the event lapses, and comes to another process
        finally:
            self.tasks.discard(task)

    def _delivery(self, event: WebhookEvent) -> Delivery:
        delivery = Delivery(SOURCE, {"kind": event.kind, "source": event.source, "path": self._path})
        delivery.id = delivery.key = event.id
        delivery.data, delivery.destination = event.data, self._path
        return delivery

    async def _look(self) -> None:
        while True:
            try:
                await self._sweep(_RELEASED)
            except StoreError as error:
                logger().warning("pipeline %s: events of killed processes cannot be looked for: %s", self.name, error)
            await asyncio.sleep(_LOOK)

    async def _sweep(self, released: float) -> None:
        """Handle the events that killed processes have left, and those that were given back."""
        await unless_set(self.stopping, self.flow.ready())
        _SWEEPING.set(True)
        handler = keeping(self.flow.built.once.guards, self._receiver)
        await Completer([handler], released, self.stopping.is_set).run_async()


def _reason(outcome: "BatchOutcome") -> str:
    return outcome.status if outcome.error is None else describe(outcome.error)
