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
    call = _Call(name, arguments or {}, key, argument, patience)
    until, pause = monotonic() + within, _FIRST
    while True:
        try:
            await call.attempt(connect)
        except Exception as error:
            if not call.can_repeat(error) or monotonic() + pause > until:
                raise
        wait = pause if call.result is None else call.retry_pause(pause)
        if call.result is not None and (wait is None or monotonic() + wait > until):
            return call.result
        await anyio.sleep(jittered(cast("float", wait)).seconds)
        pause = min(2 * pause, _LONGEST)


class _Call:
    """One call and its tries."""

    def __init__(self, name: str, arguments: dict[str, Any], key: str, argument: str, timeout: float) -> None:
        self._name, self._arguments, self._key = name, arguments, key
        self._argument, self._timeout = argument, timeout
        self._tool: Tool | None = None
        self._sent = False
        self.result: CallToolResult | None = None

    async def attempt(self, connect: Connect) -> None:
        """Call the tool once; raises what the client raises."""
        self.result = None
        try:
            # A frozen server would keep us for as long as the HTTP client waits.
            with anyio.fail_after(self._timeout) as limit:
                async with connect() as client:
                    self._tool = self._tool or await self._find(client)
                    arguments = dict(self._arguments)
                    if self._argument in self._tool.input_schema.get("properties", {}):
                        arguments.setdefault(self._argument, self._key)
                    meta = cast("RequestParamsMeta", {META_NAME: self._key})
                    self._sent, limit.deadline = True, math.inf
                    try:
                        self.result = await client.call_tool(self._name, arguments, self._timeout, meta=meta)
                    finally:
                        limit.deadline = anyio.current_time() + self._timeout  # of the goodbye
        except Exception:
            if self.result is None:  # else the reply came, and only the goodbye failed
                raise

    async def _find(self, client: Client) -> Tool:
        cursor = None
        while True:
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools:
                if tool.name == self._name:
                    return tool
            if (cursor := page.next_cursor) is None:
                raise LookupError(f"the server has no tool {self._name}")

    def can_repeat(self, error: BaseException) -> bool:
        """Return whether the call can be made again after ``error``."""
        hints = None if self._tool is None else self._tool.annotations
        is_safe = not self._sent or (hints is not None and hints.idempotent_hint is True)
        return is_safe and _is_lost(error)

    def retry_pause(self, pause: float) -> float | None:
        """Return the seconds after which a refused call can be made again; None if the result is final."""
        meta = (self.result and self.result.meta) or {}
        if meta.get("onceward/refused") not in _AGAIN:
            return None
        after = meta.get("onceward/retryAfter", pause)
        return min(float(after), max(pause, 1.0))  # its claim may end sooner than its lease


def _is_lost(error: BaseException) -> bool:
    """Return whether an error says that no reply came."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_lost(one) for one in error.exceptions)
    if isinstance(error, MCPError):
        return error.error.code in {CONNECTION_CLOSED, REQUEST_TIMEOUT}
    return isinstance(error, _BROKEN)
