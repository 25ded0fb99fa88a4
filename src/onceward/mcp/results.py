"""What is recorded of a tool: the result as it goes over the wire, so that a replay has the same blocks, data and flags."""

from functools import cached_property
from typing import Any, Final

from mcp.server.mcpserver.utilities.func_metadata import func_metadata
from mcp_types import CallToolResult, TextContent

from onceward.errors import OncewardError
from onceward.mcp.call import Function, is_fastmcp

REPLAYED: Final = "onceward/replayed"  # in _meta
_RESULT: Final = "onceward/result"  # what is under it in a record goes over the wire as it is
Recorded = dict[str, Any]


class ToolFailed(OncewardError):
    """A guarded tool of an MCP server has returned a result with ``isError``. The client gets that result.

    Cause: The tool itself said that it failed.

    Fix: Nothing: the key is free again. If the error is the outcome, name this class in ``final``. Then it is recorded.

    Attributes:
        result: the result.
    """

    def __init__(self, result: CallToolResult) -> None:
        super().__init__("the tool returned an error")
        self.result = result


class Results:
    """Converts what a tool returns, as its MCP library would.

    Args:
        tool: the guarded function, with the signature that the library sees.
        context: the name of its parameter for the context.
    """

    def __init__(self, tool: Function, context: str) -> None:
        self._tool = tool
        self._context = context

    def read(self, context: object, value: object) -> CallToolResult:
        """Return a recorded result. A tool or an operator that completed the key has recorded a plain value."""
        if isinstance(value, dict) and value.keys() == {_RESULT}:
            return CallToolResult.model_validate(value[_RESULT])
        return self.converted(context, value)

    def converted(self, context: object, value: object) -> CallToolResult:
        """Return what a tool has returned, as a result.

        The effect has happened, so a value that the library cannot convert is an error result, which is recorded, too.
        """
        try:
            return self._of_fastmcp(value) if is_fastmcp(context) else self._of_sdk(value)
        except Exception as error:
            text = "The tool has done its work, but its result cannot be shown"
            return error_result(f"{text} ({type(error).__name__}). Do not call it again for this.")

    def _of_sdk(self, value: object) -> CallToolResult:
        result = self._metadata.convert_result(value)
        assert isinstance(result, CallToolResult)
        return result

    def _of_fastmcp(self, value: object) -> CallToolResult:
        result = self._fastmcp_tool.convert_result(value).to_mcp_result()
        if isinstance(result, CallToolResult):
            return result
        content, structured = result if isinstance(result, tuple) else (result, None)
        return CallToolResult(content=content, structured_content=structured)

    @cached_property
    def _metadata(self) -> Any:
        return func_metadata(self._tool, skip_names=[self._context])

    @cached_property
    def _fastmcp_tool(self) -> Any:
        from fastmcp.tools import Tool

        return Tool.from_function(self._tool)


def error_result(text: str, **meta: object) -> CallToolResult:
    """Return a result that tells the model of an error; ``meta`` are names of ours in ``_meta``."""
    marks = {f"onceward/{name}": value for name, value in meta.items()}
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True, _meta=marks or None)


def recorded(result: CallToolResult) -> Recorded:
    """Return what is recorded of a result."""
    return {_RESULT: result.model_dump(mode="json", by_alias=True, exclude_none=True)}


def replay(result: CallToolResult) -> CallToolResult:
    """Return a result that says in ``_meta`` that the tool has not run now."""
    return result.model_copy(update={"meta": {**(result.meta or {}), REPLAYED: True}})
