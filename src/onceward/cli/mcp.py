"""The command that serves a ledger to the agents of its operators, over MCP."""

import os
from hmac import compare_digest
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Option

from onceward.cli.ledgers import DEFAULT_STORE, StoreOption, looking_at, refuse
from onceward.once import Once

if TYPE_CHECKING:
    from mcp.server.auth.provider import AccessToken

VARIABLE: Final = "ONCEWARD_MCP_TOKEN"  # has the token
_ACTIONS: Final = ("unpark", "settle", "clear")


def mcp(
    store: StoreOption = DEFAULT_STORE,
    allow: list[str] | None = None,
    show_payloads: bool = False,
    port: Annotated[int | None, Option(min=1, max=65535)] = None,
) -> None:
    """Serve the ledger to an agent over MCP: it lists, shows and counts records, and checks the ledger's settings.

    It is read-only, and shows no results, errors or messages of handlers. With --allow the agent can also unpark,
    settle or clear a key. Such a call takes effect once. The ledger records it with its reason, like an action of the
    dashboard.

    Without --port, a client starts the command, and talks to it over standard input and output. With --port it listens
    on this machine. If ONCEWARD_MCP_TOKEN is set, clients must send it as a bearer token. With --port and --allow, this
    variable must be set.

    Options:
        allow (ACTION): Let the agent do this with keys: unpark, settle or clear. Repeat it for several actions. By
            default: none.
        show_payloads: Show results, errors, steps, messages and inputs, too.
        port (N): Listen on this port of this machine, over streamable HTTP at /mcp. By default: stdio.
    """
    actions = dict.fromkeys(allow or ())
    if wrong := [action for action in actions if action not in _ACTIONS]:
        refuse(f"--allow {wrong[0]}: give one of {', '.join(_ACTIONS)}")
    token = os.environ.pop(VARIABLE, None) or None
    if port is not None and actions and token is None:
        refuse(f"--allow with --port: everybody on this machine could change records, so set {VARIABLE}")
    try:
        from onceward.cli.mcp_tools import assembled
    except ImportError:
        refuse("this command needs the MCP SDK: pip install 'onceward[cli,mcp]'")
    with looking_at(store) as ledger:
        next(iter(ledger.records()), None)  # the ledger can be read
        more = _checked(token) if port and token else {}
        server = assembled(Once(ledger.store), actions, payloads=show_payloads, **more)
        if port is None:
            server.run()
        else:
            server.run(transport="streamable-http", port=port)


class _OneToken:
    """Accepts one token."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def verify_token(self, token: str) -> "AccessToken | None":
        from mcp.server.auth.provider import AccessToken

        if not compare_digest(token.encode(), self._token.encode()):
            return None
        return AccessToken(token=token, client_id="operator", scopes=[])


def _checked(token: str) -> dict[str, Any]:
    """Return the options of a server that asks for a token."""
    from mcp.server.auth.settings import AuthSettings
    from pydantic import AnyHttpUrl

    issuer = AnyHttpUrl("http://localhost")  # there is none: the token comes from the operator
    settings = AuthSettings(issuer_url=issuer, resource_server_url=None)
    return {"auth": settings, "token_verifier": _OneToken(token)}
