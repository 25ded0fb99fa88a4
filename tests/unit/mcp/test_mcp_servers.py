"""Tools of MCP servers that are guarded by one line, whose key it is, and ``call_tool``."""

import asyncio
import contextlib
import socket
import threading

import httpx2
import pytest
import uvicorn
from fastmcp import FastMCP
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier
from fastmcp.server.dependencies import get_http_headers
from fastmcp.tools import Tool, tool
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server import MCPServer
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp_types import ToolAnnotations

from commands.mcp_tools import mark, text
from onceward import Once
from onceward.mcp import ToolKey, ToolScope, call_tool, exactly, guard_tools
from servers.needs import free_port
from waiting import until


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


def test_tools_that_were_there_before_a_missing_scope_and_a_wrong_server_are_refused(shop, once):
    @shop.server.tool()
    def charge(order: str) -> str:
        return "charged"

    with pytest.raises(ValueError, match="has the tool charge already"):
        guard_tools(shop.server, once, key=ToolKey.argument(), scope=ToolScope.EVERYBODY)
    with pytest.raises(TypeError, match="scope=None: say which"):
        guard_tools(shop.server, once, key=ToolKey.argument())
    with pytest.raises(TypeError, match="give an MCPServer of the official SDK, or a FastMCP"):
        guard_tools("shop", once, key=ToolKey.argument(), scope=ToolScope.EVERYBODY)


def test_a_made_tool_of_fastmcp_cannot_pass_unguarded(once):
    def charge(order: str) -> str:
        return "charged"

    server = FastMCP("shop")
    guard_tools(server, once, key=ToolKey.argument(), scope=ToolScope.EVERYBODY)
    for made in (Tool.from_function(charge), tool(name="charge")(charge)):
        with pytest.raises(TypeError, match="needs the tool's function"):
            server.add_tool(made)


def test_two_functions_of_one_name_are_not_one_tool(guarded):
    def charge() -> str:
        return "charged"

    def other() -> str:
        return "other"

    other.__name__ = "charge"
    guarded.server.tool(name="one")(charge)
    guarded.server.tool(name="two")(other)
    assert [text(guarded.call(name, idempotency_key="k")) for name in ("one", "two")] == ["charged", "other"]
    guarded.server.add_tool(charge)  # without the decorator it is guarded, too
    assert guarded.call("charge").is_error  # its schema asks for a key
    assert guarded.tools()["charge"].annotations.idempotent_hint


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


async def test_each_call_of_the_helper_is_a_new_operation_unless_it_has_a_key():
    ran = []
    connect = shop(Once("memory:", name="shop"), ran)
    keys = (None, None, "k", "k")
    told = [await call_tool(connect, "pay", {"order": "o"}, key=key) for key in keys]
    assert [text(result) for result in told] == ["paid 1", "paid 2", "paid 3", "paid 3"]


async def test_in_a_guarded_handler_the_next_attempt_sends_the_same_key():
    ran = []
    connect = shop(Once("memory:", name="shop"), ran)
    orders = Once("memory:", name="orders")

    async def handle(order):
        result = await call_tool(connect, "pay", {"order": order})
        if not mark(result, "replayed"):
            raise ConnectionError("this attempt fails after the call")
        return text(result)

    with pytest.raises(ConnectionError):
        await orders.run_async("o", handle, "o")
    told = await orders.run_async("o", handle, "o")
    assert told == "paid 1"
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


async def test_a_busy_key_is_asked_for_again_until_its_result_is_there():
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
    results = await asyncio.gather(*calls)
    assert ([text(result) for result in results], ran) == (["paid", "paid"], ["o"])


TOKENS = {
    "old": AccessToken(token="old", client_id="app", scopes=[], subject="alice"),
    "renewed": AccessToken(token="renewed", client_id="app", scopes=[], subject="alice"),
    "other": AccessToken(token="other", client_id="app", scopes=[], subject="bob"),
    "machine": AccessToken(token="machine", client_id="app", scopes=[]),
}
both = pytest.mark.parametrize("library", ["sdk", "fastmcp"])


class Verifier:
    async def verify_token(self, token):
        return TOKENS.get(token)


@contextlib.contextmanager
def serving(scope, library="sdk", **options):
    """Serve a tool over streamable HTTP, and give what calls it with a token."""
    port, ran, once = free_port(), [], Once("memory:", name="shop")
    server = MCPServer("shop", **options) if library == "sdk" else FastMCP("shop", **options)

    @server.tool()
    @exactly(once, key=ToolKey.argument(), scope=scope)
    async def charge(order: str) -> str:
        ran.append(order)
        return f"charged {len(ran)}"

    app = server.streamable_http_app() if library == "sdk" else server.http_app()
    web = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", ws="none"))
    thread = threading.Thread(target=web.run)
    thread.start()

    def call(token=None, times=1, mode="auto"):
        async def main():
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
                transport = streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=http)
                async with Client(transport, mode=mode) as client:
                    return [
                        await client.call_tool("charge", {"order": "o", "idempotency_key": "k"}) for _ in range(times)
                    ]

        return asyncio.run(main())

    try:
        until(lambda: web.started)
        yield call
    finally:
        web.should_exit = True
        thread.join()


def authenticated(library="sdk"):
    """Return the options of a server that verifies tokens."""
    if library == "fastmcp":
        tokens = {name: {"client_id": token.client_id, "sub": token.subject} for name, token in TOKENS.items()}
        return {"auth": StaticTokenVerifier(tokens)}
    url = "http://127.0.0.1"
    auth = AuthSettings(issuer_url=url, resource_server_url=url, required_scopes=[], validate_token_resource=False)
    return {"token_verifier": Verifier(), "auth": auth}


@pytest.mark.slow
@both
def test_a_key_belongs_to_the_principal_of_the_token_also_after_it_was_renewed(library):
    with serving(ToolScope.TOKEN, library, **authenticated(library)) as call:
        assert [text(call(token)[0]) for token in ("old", "renewed", "other")] == [f"charged {n}" for n in (1, 1, 2)]
        refused = call("machine")[0]
        assert (refused.is_error, mark(refused, "refused")) == (True, "scope")
        assert "names no subject" in text(refused)


@pytest.mark.slow
@both
def test_a_key_belongs_to_the_session(library):
    with serving(ToolScope.SESSION, library) as call:
        assert [text(result) for result in call(times=2, mode="legacy")] == ["charged 1"] * 2
        assert text(call(mode="legacy")[0]) == "charged 2"
        assert "is in no session" in text(call()[0])  # the protocol of 2026-07-28 has none


@pytest.mark.slow
@both
def test_the_owner_can_say_who_the_caller_is(library):
    def caller(context):
        headers = context.headers if library == "sdk" else get_http_headers(include_all=True)
        return headers.get("authorization")

    with serving(caller, library) as call:
        assert [text(call(token)[0]) for token in ("a", "b", "a")] == ["charged 1", "charged 2", "charged 1"]
        assert "cannot tell who the caller is" in text(call()[0])


@pytest.mark.slow
def test_without_a_token_nothing_runs():
    with serving(ToolScope.TOKEN) as call:
        assert "has no verified access token" in text(call()[0])
