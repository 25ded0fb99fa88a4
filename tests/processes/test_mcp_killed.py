"""Tools of MCP servers that are killed between the effect and the answer, and clients that call again with the same key."""

import asyncio
import os
import sys

import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError

from commands.mcp_tools import mark, text
from places import SOURCES, WORKERS

SCRIPT = str(WORKERS / "mcp_shop.py")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCES)}
LIBRARIES = ("sdk", "fastmcp")


def over_stdio(library, folder):
    return lambda: Client(
        StdioServerParameters(command=sys.executable, args=[SCRIPT, library, str(folder)], env=ENVIRONMENT)
    )


def payments(folder):
    return sorted(path.name.split("-")[1] for path in folder.glob("paid-*"))


def asked(folder):
    return (folder / "asked").read_text().split()


async def call_again(connect, name, arguments, key):
    """Call a tool until a reply comes, with the same key."""
    while True:
        try:
            async with connect() as client:
                result = await client.call_tool(name, arguments, meta={"onceward/idempotencyKey": key})
        except (MCPError, BaseExceptionGroup):
            continue
        if mark(result, "refused") != "busy":
            return result
        await asyncio.sleep(0.25)


@pytest.mark.sampled("answer-sdk")
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("point", ["effect", "answer"])
def test_a_server_over_stdio_is_killed_before_its_answer(tmp_path, library, point):
    (tmp_path / f"crash-{point}").touch()
    result = asyncio.run(call_again(over_stdio(library, tmp_path), "pay", {"order": "o1"}, "one"))
    assert not (tmp_path / f"crash-{point}").exists()
    assert (text(result), payments(tmp_path)) == ("paid o1", ["o1"])
    # Recorded before the crash, it is a replay. Else the bank is asked again, with the key that it knows.
    assert (mark(result, "replayed"), len(asked(tmp_path))) == ((True, 1) if point == "answer" else (None, 2))
