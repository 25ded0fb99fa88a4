"""All tools of a server that change something, guarded by one line."""

import pytest
from mcp_types import ToolAnnotations

from commands.mcp_tools import mark, text
from onceward.mcp import ToolKey, ToolScope, exactly, guard_tools


@pytest.fixture
def guarded(shop, once):
    guard_tools(shop.server, once, key=ToolKey.argument(), scope=ToolScope.EVERYBODY)
    return shop


@pytest.mark.slow
def test_each_tool_that_changes_something_takes_effect_once_and_says_so(guarded):
    ran = []

    @guarded.server.tool(annotations=ToolAnnotations(title="Charge", destructive_hint=False))
    def charge(order: str) -> str:
        ran.append(order)
        return "charged"

    @guarded.server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def look(order: str) -> str:
        return "paid"

    tools = guarded.tools()
    assert ["idempotency_key" in tools[name].input_schema["properties"] for name in ("charge", "look")] == [True, False]
    assert [tools[name].annotations.idempotent_hint for name in ("charge", "look")] == [True, None]
    assert (tools["charge"].annotations.title, tools["charge"].annotations.destructive_hint) == ("Charge", False)
    assert [text(guarded.call("charge", order="o", idempotency_key="k")) for _ in range(2)] == ["charged"] * 2
    assert text(guarded.call("look", order="o")) == "paid"
    assert ran == ["o"]


def test_tools_that_were_there_before_are_not_left_unguarded(shop, once):
    @shop.server.tool()
    def charge(order: str) -> str:
        return "charged"

    with pytest.raises(ValueError, match="has the tool charge already"):
        guard_tools(shop.server, once, key=ToolKey.argument(), scope=ToolScope.EVERYBODY)


def test_a_made_tool_of_fastmcp_cannot_pass_unguarded(once):
    from fastmcp import FastMCP
    from fastmcp.tools import Tool

    def charge(order: str) -> str:
        return "charged"

    server = FastMCP("shop")
    guard_tools(server, once, key=ToolKey.argument(), scope=ToolScope.EVERYBODY)
    with pytest.raises(TypeError, match="needs the tool's function"):
        server.add_tool(Tool.from_function(charge))


@pytest.mark.parametrize("all_guarded", [False, True])
def test_a_tool_that_exactly_adds_to_its_server_says_that_it_can_be_called_again(shop, once, all_guarded):
    if all_guarded:
        guard_tools(shop.server, once, key=ToolKey.argument(), scope=ToolScope.EVERYBODY)
    ran = []

    @exactly(once, server=shop.server, key="order", scope=ToolScope.EVERYBODY)
    def charge(order: str) -> str:
        ran.append(order)
        return "charged"

    tool = shop.tools()["charge"]
    assert (tool.annotations.read_only_hint, tool.annotations.idempotent_hint) == (False, True)
    assert set(tool.input_schema["properties"]) == {"order"}
    assert [text(shop.call("charge", order="o")) for _ in range(2)] == ["charged"] * 2
    assert ran == ["o"]


def test_a_function_that_is_added_without_the_decorator_is_guarded_too(guarded):
    def charge(order: str) -> str:
        return "charged"

    guarded.server.add_tool(charge)
    assert mark(guarded.call("charge", order="o"), "refused") is None  # its schema asks for a key
    assert guarded.call("charge", order="o").is_error
    assert guarded.tools()["charge"].annotations.idempotent_hint


def test_a_missing_scope_and_a_wrong_server_are_refused(shop, once):
    with pytest.raises(TypeError, match="scope= is missing"):
        guard_tools(shop.server, once, key=ToolKey.argument())
    with pytest.raises(TypeError, match="give an MCPServer of the official SDK, or a FastMCP"):
        guard_tools("shop", once, key=ToolKey.argument(), scope=ToolScope.EVERYBODY)
