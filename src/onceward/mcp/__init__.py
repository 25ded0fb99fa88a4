"""Tools of an MCP server that a guard protects: why a call was refused reaches the model.

The official SDK hides the text of an exception that is not its ``ToolError``, and so does FastMCP with ``mask_error_details``.
"""

import inspect
import sys
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, Final, TypeVar, cast

from onceward.errors import OncewardError

__all__ = ["tool_errors"]

F = TypeVar("F", bound=Callable[..., Any])
_MODULES: Final = (
    "mcp.server.mcpserver.exceptions",  # of the official SDK 2,
    "mcp.server.fastmcp.exceptions",  # and 1
    "fastmcp.exceptions",
)


def tool_errors(tool: F) -> F:
    """Let the model read why a guarded tool was refused: Busy, Mismatch, Parked and the others say what to do next.

    Put it between the server's decorator and the guard::

        @server.tool()
        @tool_errors
        @once(key="order")
        def charge(order: str) -> str: ...

    Args:
        tool: a guarded function or coroutine function.

    Returns:
        A function that raises ``ToolError`` of the MCP library in place of an :class:`onceward.OncewardError`, with its text.
    """
    if inspect.iscoroutinefunction(tool):

        @wraps(tool)
        async def told_async(*args: object, **kwargs: object) -> object:
            try:
                return await tool(*args, **kwargs)
            except OncewardError as error:
                raise _tool_error()(str(error)) from error

        return cast("F", told_async)

    @wraps(tool)
    def told(*args: object, **kwargs: object) -> object:
        try:
            return tool(*args, **kwargs)
        except OncewardError as error:
            raise _tool_error()(str(error)) from error

    return cast("F", told)


@cache
def _tool_error() -> type[Exception]:
    """Return an error that each MCP library of this process takes for its own."""
    found = {sys.modules[name].ToolError: None for name in _MODULES if name in sys.modules}
    return type("ToolError", tuple(found), {}) if found else RuntimeError
