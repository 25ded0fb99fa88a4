"""Whose key it is, for tools of an MCP server."""

import asyncio
import contextlib
import threading

import httpx2
import pytest
import uvicorn
from fastmcp import FastMCP
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier
from fastmcp.server.dependencies import get_http_headers
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server import MCPServer
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings

from commands.mcp_tools import mark, text
from onceward import Once
from onceward.mcp import ToolKey, ToolScope, exactly
from servers.needs import free_port
from waiting import until

pytestmark = pytest.mark.slow

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
    return {
        "token_verifier": Verifier(),
        "auth": AuthSettings(
            issuer_url=url, resource_server_url=url, required_scopes=[], validate_token_resource=False
        ),
    }


@both
def test_a_key_belongs_to_the_principal_of_the_token_also_after_it_was_renewed(library):
    with serving(ToolScope.TOKEN, library, **authenticated(library)) as call:
        assert [text(call(token)[0]) for token in ("old", "renewed", "other")] == [
            "charged 1",
            "charged 1",
            "charged 2",
        ]
        refused = call("machine")[0]
        assert (refused.is_error, mark(refused, "refused")) == (True, "scope")
        assert "names no subject" in text(refused)


@both
def test_a_key_belongs_to_the_session(library):
    with serving(ToolScope.SESSION, library) as call:
        assert [text(result) for result in call(times=2, mode="legacy")] == ["charged 1"] * 2
        assert text(call(mode="legacy")[0]) == "charged 2"
        assert "is in no session" in text(call()[0])  # the protocol of 2026-07-28 has none


@both
def test_the_owner_can_say_who_the_caller_is(library):
    def caller(context):
        return (
            context.headers.get("authorization")
            if library == "sdk"
            else get_http_headers(include_all=True).get("authorization")
        )

    with serving(caller, library) as call:
        assert [text(call(token)[0]) for token in ("a", "b", "a")] == ["charged 1", "charged 2", "charged 1"]
        assert "cannot tell who the caller is" in text(call()[0])


def test_without_a_token_nothing_runs():
    with serving(ToolScope.TOKEN) as call:
        assert "has no verified access token" in text(call()[0])
