"""All tools of a server that change something, guarded by one line."""

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any, Unpack

from mcp.server import MCPServer
from mcp_types import ToolAnnotations

from onceward.core.policy import Options
from onceward.keys.reading import KeySource
from onceward.mcp.tool import GUARDED, exactly
from onceward.once import Once

Function = Callable[..., Any]


def guard_tools(
    server: object,
    once: Once,
    *,
    key: object,
    scope: object = None,
    fingerprint: KeySource | bool = True,
    **options: Unpack[Options],
) -> None:
    """Guard each tool that is added to ``server`` from now on, unless its annotations say ``readOnlyHint: true``.

    The annotations of a guarded tool say ``idempotentHint: true``. A tool under ``@exactly`` keeps its own options. Tools of a
    mounted server or of a provider are not guarded: guard that server, too.

    Args:
        server: an ``MCPServer`` of the official SDK, or a ``FastMCP``, that has no tools yet.
        once: as for :func:`exactly`.
        key: as for :func:`exactly`.
        scope: as for :func:`exactly`.
        fingerprint: as for :func:`exactly`.
        **options: see :class:`onceward.Policy`.

    Raises:
        ValueError, TypeError: the server has tools already, or an option is missing or not valid.
    """
    guard = exactly(once, key=key, scope=scope, fingerprint=fingerprint, **options)
    if names := _tool_names(server):
        raise ValueError(
            f"guard_tools: the server has the tool {names[0]} already. Call it before the first tool is added"
        )
    # The servers have no hook for this. Both add tools by these methods, which are public.
    if isinstance(server, MCPServer):
        setattr(server, "add_tool", _adding(server.add_tool, guard))  # noqa: B010 - a type checker lets nobody assign a method
    else:
        _guard_fastmcp(server, guard)


def _adding(add_tool: Function, guard: Function) -> Function:
    signature = inspect.signature(add_tool)

    @wraps(add_tool)
    def add(*args: Any, **kwargs: Any) -> None:
        arguments = signature.bind(*args, **kwargs).arguments
        add_tool(**{**arguments, **_parts(arguments["fn"], arguments.get("annotations"), guard)})

    return add


def _guard_fastmcp(server: Any, guard: Function) -> None:
    tool = server.tool

    @wraps(tool)
    def decorate(name_or_fn: Any = None, **options: Any) -> Any:
        if not callable(name_or_fn):
            return lambda function: decorate(function, **{"name": name_or_fn, **options})
        parts = _parts(name_or_fn, options.get("annotations"), guard)
        return tool(parts["fn"], **{**options, "annotations": parts["annotations"]})

    def add(function: Any) -> Any:
        # A Tool, or a function that FastMCP's own @tool has marked.
        if not inspect.isroutine(function) or hasattr(function, "__fastmcp__"):
            raise TypeError(f"add_tool({function!r}): guard_tools needs the tool's function, so that it can guard it")
        decorate(function)

    server.tool, server.add_tool = decorate, add


def _parts(function: Function, original: ToolAnnotations | dict[str, Any] | None, guard: Function) -> dict[str, Any]:
    """Return the function and the annotations to add."""
    annotations = ToolAnnotations.model_validate(original or {}, by_name=True, by_alias=True)
    if annotations.read_only_hint:
        return {"fn": function, "annotations": original}
    hints = annotations.model_copy(update={"read_only_hint": False, "idempotent_hint": True})
    return {"fn": function if hasattr(function, GUARDED) else guard(function), "annotations": hints}


def _tool_names(server: Any) -> list[str]:
    """Return the tools that a server has. A thread asks it, because this one may run an event loop."""
    if not callable(getattr(server, "list_tools", None)):
        raise TypeError(f"guard_tools({server!r}): give an MCPServer of the official SDK, or a FastMCP")
    with ThreadPoolExecutor(1) as thread:
        return [tool.name for tool in thread.submit(asyncio.run, server.list_tools()).result()]
