"""An MCP server that pays: ``LIBRARY FOLDER``. It kills itself at the point that a file in the folder names, once."""

import os
import signal
import sys
from pathlib import Path

import fastmcp
from mcp.server import MCPServer

from onceward import Claim, Once
from onceward.mcp import ToolKey, ToolScope, guard_tools
from onceward.observe import Event

library, folder = sys.argv[1:]
FOLDER = Path(folder)


def crash(point: str) -> None:
    """End this process at once, if the test asks for it here."""
    try:
        (FOLDER / f"crash-{point}").unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def watch(event: Event) -> None:
    if event.kind == "completed":
        crash("answer")  # it is recorded, and the client has no answer yet


once = Once(f"sqlite:///{FOLDER}/ledger.db", name="shop", lease=2, observe=[watch])
server = MCPServer("shop", log_level="ERROR") if library == "sdk" else fastmcp.FastMCP("shop")
guard_tools(server, once, key=[ToolKey.argument(), ToolKey.META], scope=ToolScope.EVERYBODY, on_busy=20)


@server.tool()
async def pay(order: str, claim: Claim) -> str:
    """Pay an order at a bank that knows keys."""
    with (FOLDER / "asked").open("a") as log:
        log.write(f"{order}\n")
    (FOLDER / f"paid-{order}-{claim.key()}").touch()
    crash("effect")
    return f"paid {order}"


server.run() if library == "sdk" else server.run(show_banner=False)
