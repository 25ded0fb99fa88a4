"""MCP servers of both libraries in this process, and clients that call their tools."""

import asyncio
from contextlib import asynccontextmanager
from typing import Annotated

import fastmcp
import mcp
from mcp.server import MCPServer
from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult
from pydantic import Field


class KeyedParams(CallToolRequestParams):
    """The params of ``tools/call`` with the field of the proposal SEP-3182."""

    idempotency_key: Annotated[str | None, Field(alias="idempotencyKey")] = None


class KeyedRequest(CallToolRequest):
    params: KeyedParams


class Shop:
    def __init__(self, library: str) -> None:
        self.is_sdk = library == "sdk"
        self.server = MCPServer("shop") if self.is_sdk else fastmcp.FastMCP("shop")

    def client(self):
        return mcp.Client(self.server) if self.is_sdk else fastmcp.Client(self.server)

    @asynccontextmanager
    async def session(self):
        async with self.client() as client:
            yield client.session

    def call(self, tool: str, meta=None, field=None, **arguments) -> CallToolResult:
        """Call a tool once; ``field`` is the call's own ``idempotencyKey``."""

        async def main():
            async with self.session() as session:
                return await called(session, tool, arguments, meta, field)

        return asyncio.run(main())

    def tools(self):
        async def main():
            async with self.session() as session:
                return {tool.name: tool for tool in (await session.list_tools()).tools}

        return asyncio.run(main())


async def called(session, tool, arguments, meta=None, field=None) -> CallToolResult:
    params = KeyedParams(name=tool, arguments=arguments, _meta=meta, idempotency_key=field)
    return await session.send_request(KeyedRequest(params=params), CallToolResult)


def text(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content)


def mark(result: CallToolResult, name: str):
    return (result.meta or {}).get(f"onceward/{name}")
