"""A client's side: call a tool again after a lost reply, with the same key, where the server says that this is safe."""

import math
import uuid
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from time import monotonic
from typing import Any, Final, cast

import anyio
from httpx2 import TransportError
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT, CallToolResult, RequestParamsMeta, Tool

from onceward.claim.held import innermost
from onceward.core.retries import jittered
from onceward.mcp.key import META_NAME

_FIRST, _LONGEST = 0.25, 8.0  # seconds between two tries
_AGAIN: Final = frozenset({"busy", "lost", "away"})  # refusals of ours after which the same call can succeed
_BROKEN: Final = (OSError, TransportError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)

Connect = Callable[[], AbstractAsyncContextManager[Client]]


async def call_tool(
    connect: Connect,
    name: str,
    arguments: dict[str, Any] | None = None,
    *,
    key: str | None = None,
    argument: str = "idempotency_key",
    patience: float = 30.0,
    within: float = 120.0,
) -> CallToolResult:
    """Call a tool. If the reply is lost, connect and call again with the same key, if the tool says ``idempotentHint: true``.

    Args:
        connect: makes a client, as in ``lambda: Client("http://localhost:8000/mcp")``. Each try has a new one.
        name: the tool's name.
        arguments: its arguments.
        key: identifies the operation. By default it is new for each call. In a guarded handler it is derived from the claim, so
            the next attempt sends the same one.
        argument: the tool's argument for a key. If its schema has it, it gets the key; ``_meta`` always has it.
        patience: seconds that one try waits for its connection and the list of tools, and then for its reply.
        within: seconds after which there is no further try.

    Returns:
        The result, which can be a refusal if ``within`` is over.

    Raises:
        Exception: the client's own or TimeoutError, if the reply is lost, and the tool is not safe to call again or ``within`` is over.
        LookupError: the server has no such tool.
    """
    if key is None:
        claim = innermost()
        key = str(uuid.uuid4()) if claim is None else claim.request_key("tools/call", name)
    until, pause = monotonic() + within, _FIRST
    tool: Tool | None = None
    is_sent = False
    while True:
        result: CallToolResult | None = None
        wait = pause
        try:
            # A frozen server would keep us for as long as the HTTP client waits.
            with anyio.fail_after(patience) as limit:
                async with connect() as client:
                    tool = tool or await _find(client, name)
                    given = dict(arguments or {})
                    if argument in tool.input_schema.get("properties", {}):
                        given.setdefault(argument, key)
                    meta = cast("RequestParamsMeta", {META_NAME: key})
                    is_sent, limit.deadline = True, math.inf
                    try:
                        result = await client.call_tool(name, given, patience, meta=meta)
                    finally:
                        limit.deadline = anyio.current_time() + patience  # of the goodbye
        except Exception as error:  # if the reply came, only the goodbye failed
            hints = None if tool is None else tool.annotations
            is_safe = not is_sent or (hints is not None and hints.idempotent_hint is True)
            if result is None and not (is_safe and _is_lost(error) and monotonic() + pause <= until):
                raise
        if result is not None:
            answer = result.meta or {}
            if answer.get("onceward/refused") not in _AGAIN:
                return result
            wait = min(
                float(answer.get("onceward/retryAfter", pause)), max(pause, 1.0)
            )  # its claim may end sooner than its lease
            if monotonic() + wait > until:
                return result
        await anyio.sleep(jittered(wait).seconds)
        pause = min(2 * pause, _LONGEST)


async def _find(client: Client, name: str) -> Tool:
    cursor = None
    while True:
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            if tool.name == name:
                return tool
        if (cursor := page.next_cursor) is None:
            raise LookupError(f"the server has no tool {name}")


def _is_lost(error: BaseException) -> bool:
    """Return whether an error says that no reply came."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_lost(one) for one in error.exceptions)
    if isinstance(error, MCPError):
        return error.error.code in {CONNECTION_CLOSED, REQUEST_TIMEOUT}
    return isinstance(error, _BROKEN)
