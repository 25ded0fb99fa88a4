"""``onceward mcp``: an operator's agent looks at a ledger and changes it where it may; and tools of servers that are killed before their answer."""

import asyncio
import json
import os
import sys

import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError

from commands.command_line import Cli
from commands.mcp_tools import mark, text
from onceward import Once
from onceward.mcp import call_tool
from places import SOURCES, WORKERS


@pytest.fixture
def ledger(tmp_path):
    """A ledger with a completed and a parked key."""
    once = Once(f"sqlite:///{tmp_path}/ledger.db", name="shop", on_error="park")
    once.run("paid", lambda: "receipt of Ada")
    with pytest.raises(ValueError, match="card"):
        once.run("declined", fail)
    once.close()
    return once


def fail():
    raise ValueError("the card 4242 was declined")


def agent(tmp_path, *options):
    """Return a client that has started the command over stdio."""
    command = ["-m", "onceward", "mcp", "--store", f"sqlite:///{tmp_path}/ledger.db", *options]
    return Client(StdioServerParameters(command=sys.executable, args=command, env=Cli(tmp_path).env))


def asking(client, *calls):
    """Call tools one after the other in one session, and return the results and the tools that there are."""

    async def main():
        async with client:
            results = [await client.call_tool(name, arguments) for name, arguments in calls]
            return results, {tool.name: tool for tool in (await client.list_tools()).tools}

    return asyncio.run(main())


@pytest.mark.nightly
def test_it_looks_and_changes_nothing_and_shows_payloads_only_if_it_is_told_to(tmp_path, ledger):
    calls = [
        ("list_records", {}),
        ("list_records", {"status": ["PARKED"]}),
        ("show_record", {"key": "shop:declined"}),
        ("count_records", {}),
        ("show_record", {"key": "shop:nothing"}),
        ("list_records", {"status": ["WRONG"]}),
    ]
    results, tools = asking(agent(tmp_path), *calls)
    rows, parked, story, counts = (one.structured_content for one in results[:4])
    assert [row["key"] for row in rows["result"]] == ["shop:declined", "shop:paid"]
    assert [row["status"] for row in parked["result"]] == ["PARKED"]
    assert (story["status"], story["attempts"]) == ("PARKED", 1)
    assert [one["outcome"] for one in story["attempts_made"]] == ["PARKED"]
    assert "onceward unpark" in story["next"]
    assert counts["PARKED"] == counts["COMPLETED"] == 1
    for wrong, why in zip(results[4:], ("shop:nothing", "WRONG"), strict=True):
        assert (wrong.is_error, why in text(wrong)) == (True, True)
    said = json.dumps([rows, parked, story])
    assert [word in said for word in ("4242", "receipt")] == [False, False]
    assert set(tools) == {"list_records", "show_record", "count_records"}
    assert all(tool.annotations.read_only_hint for tool in tools.values())
    asks = [("show_record", {"key": f"shop:{key}"}) for key in ("paid", "declined")]
    (paid, declined), _ = asking(agent(tmp_path, "--show-payloads"), *asks)
    assert "receipt of Ada" in paid.structured_content["result"]
    assert "4242" in declined.structured_content["error"]


def test_an_allowed_action_is_made_once_for_its_key_and_stands_in_the_audit(tmp_path, ledger):
    settle = {"key": "shop:declined", "why": "paid by hand", "result": "receipt 7", "idempotency_key": "settle-1"}
    (first, again, other, story, keyless), tools = asking(
        agent(tmp_path, "--allow", "settle", "--allow", "clear"),
        ("settle", settle),
        ("settle", settle),
        ("settle", {**settle, "idempotency_key": "settle-2"}),
        ("show_record", {"key": "shop:declined"}),
        ("clear", {"key": "shop:paid", "why": "a test"}),
    )
    assert [text(one) for one in (first, again)] == ["settle: done; it was PARKED"] * 2
    assert (mark(again, "replayed"), other.is_error) == (True, True)  # it is completed already
    assert "cannot be settled" in text(other)
    (failed, done) = story.structured_content["changed_by_hand"]
    assert (done["action"], done["why"], done["end"]) == ("settle", "paid by hand", "done")
    assert done["before"].startswith("PARKED")
    assert failed["end"].startswith("failed: ")
    assert ledger.run("declined", fail) == "receipt 7"
    assert {"settle", "clear"} < set(tools)
    assert "unpark" not in tools
    assert tools["clear"].annotations.destructive_hint
    assert (keyless.is_error, mark(keyless, "refused")) == (True, "key")
    assert ledger.ledger.show("shop:paid")[0].status == "COMPLETED"


def test_what_cannot_be_is_refused_at_once(tmp_path, ledger):
    cli, file = Cli(tmp_path), f"sqlite:///{tmp_path}/ledger.db"
    for store, options, status, said in (
        (file, ["--allow", "delete"], 2, "give one of unpark, settle, clear"),
        (f"sqlite:///{tmp_path}/no.db", [], 1, "there is no ledger"),
    ):
        done = cli.run("mcp", "--store", store, *options)
        assert (done.returncode, said in done.stderr) == (status, True), done.stderr


SCRIPT = str(WORKERS / "mcp_shop.py")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCES)}
LIBRARIES = ("sdk", "fastmcp")


def over_stdio(library, folder):
    return lambda: Client(
        StdioServerParameters(command=sys.executable, args=[SCRIPT, library, str(folder)], env=ENVIRONMENT)
    )


def asked(folder):
    return (folder / "asked").read_text().split()


@pytest.mark.sampled("answer-sdk")
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("point", ["effect", "answer"])
def test_a_server_over_stdio_is_killed_before_its_answer(tmp_path, library, point):
    (tmp_path / f"crash-{point}").touch()
    result = asyncio.run(call_tool(over_stdio(library, tmp_path), "pay", {"order": "o1"}))
    assert not (tmp_path / f"crash-{point}").exists()
    payments = sorted(path.name.split("-")[1] for path in tmp_path.glob("paid-*"))
    assert (text(result), payments) == ("paid o1", ["o1"])
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
