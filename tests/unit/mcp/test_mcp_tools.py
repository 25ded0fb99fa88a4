"""A guarded tool of an MCP server: the model reads why a call was refused."""

import asyncio

import pytest
from mcp import Client
from mcp.server import MCPServer

from onceward import Once
from onceward.mcp import tool_errors


def called(tool, **arguments):
    server = MCPServer("shop")
    server.add_tool(tool)

    async def main():
        async with Client(server) as client:
            return await client.call_tool(tool.__name__, arguments)

    return asyncio.run(main())


@pytest.fixture(params=["plain", "coroutine"])
def charge(request):
    once = Once("memory:", name="n", on_error="park", max_attempts=1)

    def charge(order: str, amount: int = 1) -> str:
        if amount < 0:
            raise ValueError("secret of the shop")
        return f"charged {order}"

    async def charge_async(order: str, amount: int = 1) -> str:
        return charge(order, amount)

    charge_async.__name__ = "charge"
    guard = once(key="order", fingerprint="amount", name="n")
    return once, tool_errors(guard(charge if request.param == "plain" else charge_async))


def test_the_model_reads_that_a_key_is_busy_parked_or_has_another_input(charge):
    once, tool = charge
    once.acquire("held", name="n")
    busy = called(tool, order="held")
    assert (busy.is_error, "another worker" in busy.content[0].text) == (True, True)
    assert called(tool, order="o-1").content[0].text == "charged o-1"
    mismatch = called(tool, order="o-1", amount=2)
    assert (mismatch.is_error, "different input" in mismatch.content[0].text) == (True, True)
    failed = called(tool, order="o-2", amount=-1)
    assert (failed.is_error, "secret" in failed.content[0].text) == (
        True,
        False,
    )  # the tool's own error stays the server's
    parked = called(tool, order="o-2", amount=-1)
    assert (parked.is_error, "parked" in parked.content[0].text) == (True, True)


def test_a_replay_is_the_recorded_answer(charge):
    _, tool = charge
    assert [called(tool, order="o-1").content[0].text for _ in range(2)] == ["charged o-1"] * 2
