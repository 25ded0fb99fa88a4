"""MCP: tools whose effect is made once, although agents call them again; servers of the official SDK and of FastMCP.

``tool`` guards a tool. ``key`` says where its key comes from, and whose key that is. ``results`` has what is recorded, and the words
that a model reads. ``server`` guards all tools of a server, and ``client`` calls a tool again.
"""

from typing import TYPE_CHECKING

from onceward.lazily import lazily

if TYPE_CHECKING:
    from onceward.mcp.client import call_tool
    from onceward.mcp.key import ToolKey, ToolScope
    from onceward.mcp.results import ToolFailed
    from onceward.mcp.server import guard_tools
    from onceward.mcp.tool import exactly

__all__ = ["ToolFailed", "ToolKey", "ToolScope", "call_tool", "exactly", "guard_tools"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        ".client": ("call_tool",),
        ".key": ("ToolScope", "ToolKey"),
        ".results": ("ToolFailed",),
        ".server": ("guard_tools",),
        ".tool": ("exactly",),
    },
    needs=("mcp", "mcp_types"),
)
