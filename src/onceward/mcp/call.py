"""A call of a tool, as both MCP libraries hand it over: by a context, which a parameter of the tool takes."""

import sys
from collections.abc import Callable, Mapping
from inspect import signature
from types import UnionType
from typing import Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.resolve import find_resolved_parameters

PARAMETER: Final = "onceward_context"  # of a tool that has no parameter for the context
Function = Callable[..., Any]


class ToolCall(NamedTuple):
    """What a client has sent.

    Attributes:
        context: the MCP library's.
        params: those of ``tools/call``.
        arguments: the tool's own, as the server has read them.
        key: the argument that is only for the key; None if there is none.
    """

    context: Any
    params: Mapping[str, Any]
    arguments: dict[str, Any]
    key: object

    @property
    def meta(self) -> Mapping[str, Any]:
        """The ``_meta`` of the call."""
        meta = self.params.get("_meta")
        return meta if isinstance(meta, Mapping) else {}

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the HTTP request; empty for stdio."""
        return getattr(self.context.request_context.request, "headers", None) or {}


def call_of(context: Any, arguments: dict[str, Any], key: object) -> ToolCall:
    """Return the call that a context is for."""
    request = context.request_context
    # FastMCP keeps the SDK's context, which alone has the whole params, under this name ("escape hatch", it says).
    request = getattr(request, "_srctx", request)
    return ToolCall(context, request.params or {}, arguments, key)


def context_types() -> tuple[type, ...]:
    """Return the contexts of the MCP libraries that this process has loaded."""
    fastmcp = sys.modules.get("fastmcp")
    return (Context,) if fastmcp is None else (Context, fastmcp.Context)


def context_annotation() -> Any:
    """Return an annotation that makes each MCP library pass its context."""
    return Union[context_types()]  # noqa: UP007 - the number of types is not known


def context_parameter(function: Function) -> str | None:
    """Return the name of the parameter that takes the context; None if there is none.

    Raises:
        TypeError: an annotation uses a name that is not defined, so no MCP library can read the signature.
    """
    try:
        hints = get_type_hints(function)
    except NameError as error:
        raise TypeError(
            f"{function.__qualname__}: its annotations name {error.name!r}, which is not defined; import it at run time"
        ) from error
    for name, hint in hints.items():
        kinds = get_args(hint) if get_origin(hint) in {Union, UnionType} else (get_origin(hint) or hint,)
        if any(isinstance(kind, type) and issubclass(kind, context_types()) for kind in kinds):
            return name
    return None


def injected_parameters(tool: Function) -> set[str]:
    """Return the names of the parameters that an MCP library fills in by itself: FastMCP's ``Depends()``, the SDK's ``Resolve()``."""
    names = set(find_resolved_parameters(tool))
    if "fastmcp" in sys.modules:
        from fastmcp.server.dependencies import without_injected_parameters

        names |= signature(tool).parameters.keys() - signature(without_injected_parameters(tool)).parameters.keys()
    return names


def is_fastmcp(context: object) -> bool:
    """Return whether a context is FastMCP's."""
    return not isinstance(context, Context)
