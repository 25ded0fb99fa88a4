"""What each request passes before the ledger is asked: who sends it, what it may do, and how much of it there is."""

import asyncio
import ipaddress
from typing import Final

from starlette.requests import Request

from onceward.service.problems import (
    FORBIDDEN,
    MALFORMED,
    NOT_JSON,
    SLOW,
    TOO_LARGE,
    UNKNOWN_CLIENT,
    WRONG_HOST,
    RequestRefused,
)
from onceward.service.tokens import Tokens
from onceward.web.asgi_messages import body_of

_LOCAL: Final = "local"  # the client of a service without tokens
_MOST: Final = 1024 * 1024  # bytes of a request
_WITHIN: Final = 30.0  # seconds in which a request must arrive


class Door:
    """Lets requests in.

    Args:
        tokens: who may do what; None lets everybody do everything who reaches it by a name of this machine: a page in a browser here
            must not reach it by another name.
    """

    def __init__(self, tokens: Tokens | None) -> None:
        self._tokens = tokens

    def client(self, request: Request, namespace: str, action: str) -> str:
        """Return the name of the client, if it may do this there. Raises RequestRefused."""
        if self._tokens is None:
            if not _is_local(request.headers.get("host", "")):
                raise RequestRefused(
                    WRONG_HOST, "Without tokens this service is known as localhost only. Nothing was done"
                )
            return _LOCAL
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

    async def body(self, request: Request) -> bytes:
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
