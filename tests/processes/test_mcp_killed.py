"""Tools of MCP servers that are killed between the effect and the answer, and clients that call again with the same key."""

import asyncio
import os
import sys

import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError

from commands.mcp_tools import mark, text
from onceward.mcp import call_tool
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


@pytest.mark.sampled("answer-sdk")
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("point", ["effect", "answer"])
def test_a_server_over_stdio_is_killed_before_its_answer(tmp_path, library, point):
    (tmp_path / f"crash-{point}").touch()
    result = asyncio.run(call_tool(over_stdio(library, tmp_path), "pay", {"order": "o1"}))
    assert not (tmp_path / f"crash-{point}").exists()
    assert (text(result), payments(tmp_path)) == ("paid o1", ["o1"])
    # Recorded before the crash, it is a replay. Else the bank is asked again, with the key that it knows.
    assert (mark(result, "replayed"), len(asked(tmp_path))) == ((True, 1) if point == "answer" else (None, 2))


def test_a_lost_reply_of_a_tool_that_is_not_safe_is_left_to_the_caller(tmp_path):
    script = tmp_path / "unsafe.py"
    script.write_text(
        "import os\nfrom mcp.server import MCPServer\nserver = MCPServer('unsafe', log_level='ERROR')\n"
        "@server.tool()\ndef pay(order: str) -> str:\n"
        f"    open({str(tmp_path / 'asked')!r}, 'a').write(order + '\\n')\n    os._exit(9)\nserver.run()\n"
    )
    server = StdioServerParameters(command=sys.executable, args=[str(script)])
    with pytest.raises((MCPError, BaseExceptionGroup)):
        asyncio.run(call_tool(lambda: Client(server), "pay", {"order": "o1"}))
    assert asked(tmp_path) == ["o1"]
