"""What is recorded of a tool, and what a model reads when its call did not run.

A result is recorded as it goes over the wire, so that a replay has the same blocks, data and flags. A refusal says what
happened and what to do next; no ledger's key and no secret is in it.
"""

from functools import cached_property
from typing import Any, Final

from mcp.server.mcpserver.utilities.func_metadata import func_metadata
from mcp_types import CallToolResult, TextContent

from onceward.errors import (
    Busy,
    KeyMissing,
    LeaseLost,
    Mismatch,
    OncewardError,
    Parked,
    ResultNotRecorded,
    ResultUnavailable,
    StoreError,
)
from onceward.mcp.call import Function, is_fastmcp
from onceward.mcp.key import KeyArgument

REPLAYED: Final = "onceward/replayed"  # in _meta
_RESULT: Final = "onceward/result"  # what is under it in a record goes over the wire as it is
Recorded = dict[str, Any]


class ToolFailed(OncewardError):
    """A guarded tool of an MCP server has returned a result with ``isError``. The client gets that result.

    Cause: The tool itself said that it failed.

    Fix: Nothing: the key is free again. If a failure should be final, name this class in ``final``. Then the failure is
    recorded.

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
        return self.convert(context, value)

    def convert(self, context: object, value: object) -> CallToolResult:
        """Return what a tool has returned, as a result.

        The effect has happened, so a value that the library cannot convert or write is an error result, which is
        recorded, too.
        """
        try:
            result = self._of_fastmcp(value) if is_fastmcp(context) else self._of_sdk(value)
            result.model_dump_json(warnings=False)  # a result of the tool's own can hold any object
        except Exception as error:
            text = "The tool has done its work, but its result cannot be shown"
            return error_result(f"{text} ({type(error).__name__}). Do not call it again for this.")
        return result

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
    return {_RESULT: result.model_dump(mode="json", by_alias=True, exclude_none=True, warnings=False)}


def replay(result: CallToolResult) -> CallToolResult:
    """Return a result that says in ``_meta`` that the tool has not run now."""
    return result.model_copy(update={"meta": {**(result.meta or {}), REPLAYED: True}})


_TEXTS: dict[type[OncewardError], tuple[str, str]] = {
    Busy: (
        "busy",
        (
            "Not done again: a call with this key is running, or its server has died and its claim has not ended yet. Call again in "
            "{seconds} seconds with the same key and the same arguments. Do not make a new key."
        ),
    ),
    Mismatch: (
        "mismatch",
        (
            "Refused, and nothing was done: this key was used before with other arguments. To repeat the earlier call, give exactly its "
            "arguments. If this is a new operation, give a new key."
        ),
    ),
    Parked: (
        "parked",
        (
            "Refused: an earlier call with this key has failed or was cut off, and a person must decide what happens next. Its effect may "
            "have been made. Do not call again, also not with a new key. Tell the user to ask the operator of this server."
        ),
    ),
    LeaseLost: (
        "lost",
        (
            "It is not known whether this was done: this server was cut off for too long, and another one may have gone on. Call again in "
            "a minute with the same key and the same arguments. Do not make a new key."
        ),
    ),
    ResultUnavailable: (
        "unavailable",
        (
            "Already done by an earlier call with this key, but its result cannot be shown again. Do not call again, also not with a new "
            "key. Look the outcome up with another tool, or tell the user."
        ),
    ),
    ResultNotRecorded: (
        "unrecorded",
        "This was done, but it could not be recorded. Do not call again, also not with a new key: it could be done twice.",
    ),
    StoreError: (
        "away",
        "Refused, and nothing was done: this server cannot reach its ledger. Call again later with the same key and the same arguments.",
    ),
}
_OTHER = (
    "refused",
    "Refused: this server cannot tell whether this call was done before. Do not call again. Tell the user to ask the operator.",
)


def refusal(error: OncewardError, tool: str, argument: KeyArgument | None) -> tuple[str, str, float | None]:
    """Return the kind of a refusal, the text for the model, and the seconds after which to ask again, if that helps.

    Args:
        error: why the call did not run, or is not recorded.
        tool: its name.
        argument: the argument that takes a key, if the tool has one.
    """
    if isinstance(error, KeyMissing):
        give = f"Give {argument.name}" if argument else "Its client must send one"
        text = f"Refused, and nothing was done: {error}. {give}: a new one for a new operation, the same one to repeat an earlier {tool}."
        return "key", text, None
    kind, text = next((pair for error_type, pair in _TEXTS.items() if isinstance(error, error_type)), _OTHER)
    after = max(1.0, round(error.retry_after, 1)) if isinstance(error, Busy) else None
    return kind, text.format(seconds=after), after
