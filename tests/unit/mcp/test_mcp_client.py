"""``call_tool``: the key of a call, and what is tried again."""

import asyncio
import socket

import pytest
from mcp import Client
from mcp.server import MCPServer
from mcp_types import ToolAnnotations

from commands.mcp_tools import mark, text
from onceward import Once
from onceward.mcp import ToolKey, ToolScope, call_tool, guard_tools


def shop(once, ran):
    server = MCPServer("shop")
    guard_tools(server, once, key=[ToolKey.META, ToolKey.argument()], scope=ToolScope.EVERYBODY)

    @server.tool()
    async def pay(order: str) -> str:
        ran.append(order)
        return f"paid {len(ran)}"

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def look() -> str:
        return "here"

    return lambda: Client(server)


def test_each_call_of_the_helper_is_a_new_operation_unless_it_has_a_key():
    ran = []
    connect = shop(Once("memory:", name="shop"), ran)

    async def main():
        keys = (None, None, "k", "k")
        return [await call_tool(connect, "pay", {"order": "o"}, key=key) for key in keys]

    assert [text(result) for result in asyncio.run(main())] == ["paid 1", "paid 2", "paid 3", "paid 3"]


def test_in_a_guarded_handler_the_next_attempt_sends_the_same_key():
    ran = []
    connect = shop(Once("memory:", name="shop"), ran)
    orders = Once("memory:", name="orders")

    async def handle(order):
        result = await call_tool(connect, "pay", {"order": order})
        if not mark(result, "replayed"):
            raise ConnectionError("this attempt fails after the call")
        return text(result)

    async def main():
        with pytest.raises(ConnectionError):
            await orders.run_async("o", handle, "o")
        return await orders.run_async("o", handle, "o")

    assert asyncio.run(main()) == "paid 1"
    assert ran == ["o"]


def test_a_server_that_does_not_answer_is_called_again_after_patience_and_left_after_within():
    tries = []
    with socket.create_server(("127.0.0.1", 0)) as frozen:

        def connect():
            tries.append("try")
            return Client(f"http://127.0.0.1:{frozen.getsockname()[1]}/mcp")

        with pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for(call_tool(connect, "pay", patience=0.2, within=4), 60))
    assert len(tries) > 1


def test_a_busy_key_is_asked_for_again_until_its_result_is_there():
    async def main():
        server, once, go, ran = MCPServer("shop"), Once("memory:", name="shop"), asyncio.Event(), []
        guard_tools(server, once, key=ToolKey.META, scope=ToolScope.EVERYBODY)

        @server.tool()
        async def pay(order: str) -> str:
            ran.append(order)
            await go.wait()
            return "paid"

        calls = [asyncio.create_task(call_tool(lambda: Client(server), "pay", {"order": "o"}, key="k")) for _ in "12"]
        await asyncio.sleep(0.5)
        go.set()
        return await asyncio.gather(*calls), ran

    results, ran = asyncio.run(main())
    assert ([text(result) for result in results], ran) == (["paid", "paid"], ["o"])
