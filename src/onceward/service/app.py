"""Puts the service together: an ASGI application to serve or to mount."""

import asyncio
import contextlib
import ipaddress
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onceward.errors import StoreError
from onceward.keys.ledger_keys import fingerprint_of
from onceward.once import Once, check_once
from onceward.service.bodies import (
    NAMESPACE,
    ClaimBody,
    CompleteBody,
    ExtendBody,
    HealthBody,
    LookBody,
    ReleaseBody,
    StepBody,
    exact,
)
from onceward.service.claims import Claims
from onceward.service.problems import (
    FORBIDDEN,
    MALFORMED,
    METHOD,
    NOT_FOUND,
    NOT_JSON,
    SLOW,
    STOPPING,
    TOO_LARGE,
    UNKNOWN_CLIENT,
    UNREADY,
    WRONG_HOST,
    RequestRefused,
    answer_of,
)
from onceward.service.tokens import Tokens
from onceward.terminal import line
from onceward.web.asgi_messages import body_of

_LOG: Final = logging.getLogger("onceward.service")
_HEALTHY_FOR: Final = 1.0  # seconds for which the last answer of the ledger counts
_MOST: Final = 1024 * 1024  # bytes of a request
_WITHIN: Final = 30.0  # seconds in which a request must arrive
_GONE: Final = 499  # nobody reads this answer; access logs of the field have this number
_NAMESPACE: Final = re.compile(NAMESPACE.replace("$", r"\Z")).match
_DECODERS: Final[dict[str, msgspec.json.Decoder[msgspec.Struct]]] = {
    "claim": msgspec.json.Decoder(ClaimBody),
    "extend": msgspec.json.Decoder(ExtendBody),
    "step": msgspec.json.Decoder(StepBody),
    "complete": msgspec.json.Decoder(CompleteBody),
    "release": msgspec.json.Decoder(ReleaseBody),
    "park": msgspec.json.Decoder(ReleaseBody),
    "look": msgspec.json.Decoder(LookBody),
}
_OPENAPI: Final = Path(__file__).with_name("openapi.json")  # docs/draw_openapi.py makes it


def service(once: Once, *, tokens: str | None = None) -> Starlette:
    """Return an application that serves a ledger to clients in any language. Set its ``state.stopping`` to answer waiting requests.

    It logs a line for each action on the logger ``onceward.service``, without a key and a token.

    Args:
        once: the Once whose ledger it serves.
        tokens: the file of the tokens, as ``onceward token`` writes it. With None, everybody who reaches this machine by a
            name of its own, such as localhost, can do everything.

    Raises:
        TypeError: ``once`` is not a Once.
        ValueError, OSError: the file of the tokens cannot be read, or a line of it is wrong.
    """
    check_once(once, "service({})")
    desk = Desk(Claims(once), None if tokens is None else Tokens(tokens))

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        desk.stopping.set()

    app = Starlette(
        routes=[
            Route("/v1/{namespace}/{action}", desk.act, methods=["POST"]),
            Route("/healthz", desk.health, methods=["GET"]),
            Route("/openapi.json", _openapi, methods=["GET"]),
        ],
        exception_handlers={HTTPException: _refuse, Exception: _fail},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # a redirect would name whatever Host the client has sent
    app.state.stopping = desk.stopping
    return app


class Desk:
    """Answers requests.

    Args:
        claims: those of the ledger.
        tokens: who may do what; None lets everybody do everything who reaches it by a name of this machine: a page in a browser here
            must not reach it by another name.

    Attributes:
        stopping: set it to answer requests that wait for a busy key.
    """

    def __init__(self, claims: Claims, tokens: Tokens | None) -> None:
        self._claims = claims
        self._tokens = tokens
        self.stopping = asyncio.Event()
        self._healthy_until = 0.0

    async def act(self, request: Request) -> Response:
        """Answer one of the actions on a key."""
        since = self._claims.clock()
        request.state.client = "-"
        answer = await self._answer(request, since)
        took = 1000 * (self._claims.clock() - since)
        path = line(request.url.path[:200])
        _LOG.info("%s POST %s %d %.1f ms", request.state.client, path, answer.status_code, took)
        return answer

    async def _answer(self, request: Request, since: float) -> Response:
        try:
            namespace, action = request.path_params["namespace"], request.path_params["action"]
            if action not in _DECODERS:
                raise RequestRefused(NOT_FOUND, f"There is no action {action}: there are {', '.join(_DECODERS)}")
            if not _NAMESPACE(namespace):
                raise RequestRefused(
                    MALFORMED, "The namespace in the path may have only the characters A-Z a-z 0-9 _ . < > -"
                )
            request.state.client = client = self._client(request, namespace, action)
            body = _decode(await _body(request), action)
            return await self._act(request, namespace, body, since, client)
        except asyncio.CancelledError:
            if not self.stopping.is_set():
                raise
            return answer_of(
                RequestRefused(STOPPING, "Nobody knows whether this was done. Send the same request again", 1.0)
            )
        except Exception as error:
            answer = answer_of(error)
            if answer.status_code == 500:
                _LOG.error("a request failed", exc_info=error)
            return answer

    def _client(self, request: Request, namespace: str, action: str) -> str:
        """Return the name of the client, if it may do this there. Raises RequestRefused."""
        if self._tokens is None:
            if not _is_local(request.headers.get("host", "")):
                raise RequestRefused(
                    WRONG_HOST, "Without tokens this service is known as localhost only. Nothing was done"
                )
            return "local"
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        grant = self._tokens.grant(token.strip()) if kind.lower() == "bearer" else None
        if grant is None:
            raise RequestRefused(
                UNKNOWN_CLIENT, "Send a token of this service as: Authorization: Bearer TOKEN. Nothing was done"
            )
        if not grant.allows(namespace, action):
            raise RequestRefused(
                FORBIDDEN, f"The token {grant.name} does not allow {action} in {namespace}. Nothing was done"
            )
        return grant.name

    async def _act(self, request: Request, name: str, body: msgspec.Struct, since: float, client: str) -> Response:
        if isinstance(body, ClaimBody):
            return await self._claim(request, name, body, since, client)
        answer = await getattr(self._claims, request.path_params["action"])(name, body, since)
        if answer is None:
            raise RequestRefused(NOT_FOUND, "Nothing is recorded of this key")
        return _json(answer)

    async def _claim(self, request: Request, name: str, body: ClaimBody, since: float, client: str) -> Response:
        # Only its hash: what waits for a busy key keeps no input.
        mark = None if body.input is UNSET else fingerprint_of(exact(body.input))
        body.input = UNSET

        async def ask(wait: float) -> Any:
            return await self._claims.claim(name, body, mark, wait, since, client)

        answer = await (self._wait(request, ask, body.wait) if body.wait else ask(0.0))
        if answer is None:
            return Response(status_code=_GONE)
        return _json(answer, 201 if answer.outcome == "claimed" else 200)

    async def _wait(self, request: Request, ask: Callable[[float], Awaitable[Any]], wait: float) -> Any:
        """Wait for a busy key, until the client goes away (then return None) or this instance stops."""
        work = asyncio.ensure_future(ask(wait))
        others = [asyncio.ensure_future(_await_disconnect(request)), asyncio.ensure_future(self.stopping.wait())]
        try:
            await asyncio.wait([work, *others], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            work.cancel()
            await asyncio.wait([work])
            if not work.cancelled() and work.exception() is None:
                return work.result()
            return None if others[0].done() else await ask(0.0)
        finally:
            for task in (work, *others):
                task.cancel()

    async def health(self, _request: Request) -> Response:
        """Return whether the ledger answers."""
        clock = self._claims.clock
        if self.stopping.is_set():
            return answer_of(RequestRefused(UNREADY, "This instance stops", 1.0))
        try:
            if clock() >= self._healthy_until:
                await self._claims.check()
                self._healthy_until = clock() + _HEALTHY_FOR
        except StoreError:
            return answer_of(RequestRefused(UNREADY, "The ledger does not answer. Ask again", 1.0))
        return _json(HealthBody())


async def _body(request: Request) -> bytes:
    """Return the body of a request. Raises RequestRefused."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RequestRefused(NOT_JSON, "Send JSON, with Content-Type: application/json. Nothing was done")
    try:
        async with asyncio.timeout(_WITHIN):
            body = await body_of(request.receive, _MOST)
    except TimeoutError:
        raise RequestRefused(SLOW, f"The body did not arrive within {_WITHIN:g} s. Nothing was done", 1.0) from None
    if body is None:
        raise RequestRefused(MALFORMED, "The body is incomplete. Nothing was done")
    if len(body) > _MOST:
        raise RequestRefused(
            TOO_LARGE,
            f"A request has at most {_MOST} bytes. Nothing was done. If it has a larger result, send no_result instead",
        )
    return body


def _is_local(host: str) -> bool:
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.lower() == "localhost"


def _decode(data: bytes, action: str) -> msgspec.Struct:
    try:
        if not data.isascii():
            data.decode()
        return _DECODERS[action].decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RequestRefused(MALFORMED, f"The body is not what this action takes: {error}. Nothing was done") from None
    except RecursionError:
        raise RequestRefused(MALFORMED, "The body is nested too deeply. Nothing was done") from None


def _json(answer: msgspec.Struct, status: int = 200) -> Response:
    headers = {"Cache-Control": "no-store"}
    return Response(msgspec.json.encode(answer), status, headers, "application/json")


async def _await_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _openapi(_request: Request) -> Response:
    return Response(_OPENAPI.read_bytes(), media_type="application/json")


async def _refuse(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = METHOD if error.status_code == 405 else NOT_FOUND
    return answer_of(RequestRefused(kind, "Send POST /v1/NAMESPACE/ACTION. GET /openapi.json tells of all actions"))


async def _fail(_request: Request, error: Exception) -> Response:
    return answer_of(error)
