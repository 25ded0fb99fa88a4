"""Tools of MCP servers that are killed between the effect and the answer, and clients that call again with the same key."""

import asyncio
import contextlib
import os
import random
import subprocess
import sys

import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError

from commands.mcp_tools import mark, text
from onceward.mcp import call_tool
from places import SOURCES, WORKERS
from servers.needs import free_port, listens
from servers.orphans import watched

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


class HttpServer:
    """The shop over streamable HTTP, which the test kills and starts again at the same port."""

    def __init__(self, library, folder):
        self.port = free_port()
        self._command = [sys.executable, SCRIPT, library, str(folder), str(self.port)]
        self.start()

    def start(self):
        self.process = watched(subprocess.Popen(self._command, env=ENVIRONMENT, stderr=subprocess.DEVNULL))
        assert listens(self.port, self.process)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def client(self):
        return Client(f"http://127.0.0.1:{self.port}/mcp")


@pytest.mark.nightly
@pytest.mark.parametrize("library", LIBRARIES)
def test_servers_over_http_are_killed_while_two_clients_share_each_key(tmp_path, library):
    server = HttpServer(library, tmp_path)

    async def pay(order):
        await asyncio.sleep(random.random() * 3)
        return await call_tool(server.client, "pay", {"order": order}, key=f"key-{order}", patience=5)

    async def kill(times):
        for _ in range(times):
            await asyncio.sleep(1.0)
            (tmp_path / f"crash-{random.choice(['effect', 'answer'])}").touch()
            await asyncio.to_thread(server.process.wait, 60)
            await asyncio.to_thread(server.start)

    async def main():
        orders = [f"o{n}" for n in range(8)]
        killing = asyncio.create_task(kill(2))
        results = await asyncio.gather(*(pay(order) for order in orders * 2))
        while not killing.done():  # nobody pays any more, so nothing crashes
            for path in tmp_path.glob("crash-*"):
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
            if server.process.poll() is None:
                killing.cancel()
            await asyncio.sleep(0.1)
        return orders, results

    try:
        orders, results = asyncio.run(main())
    finally:
        server.kill()
    assert sorted(map(text, results)) == sorted(f"paid {order}" for order in orders * 2)
    assert payments(tmp_path) == sorted(orders)
