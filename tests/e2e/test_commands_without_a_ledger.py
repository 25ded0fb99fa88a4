"""A ledger that refuses the login, is of another version, or is no ledger at all: each command says so in one sentence, with its exit status."""

import contextlib
import socket
import threading

import pytest

from commands.command_line import Cli
from servers.postgres import Postgres

COMMANDS = {
    "ls": ("ls",),
    "stats": ("stats",),
    "show": ("show", "key"),
    "clear": ("clear", "key"),
    "park": ("park", "key"),
    "doctor": ("doctor",),
    "exec": ("exec", "--key", "k"),
    "pipe": ("pipe", "--key", "line.id"),
    "serve": ("serve", "--port", "0"),
    "dashboard": ("dashboard", "--port", "0"),
    "mcp": ("mcp",),
    "init": ("init",),
    "migrate": ("migrate",),
    "purge": ("purge",),
    "relay": ("relay", "--once"),
}
STATUS = {"doctor": 2, "exec": 69, "pipe": 4, "relay": 4}  # as their help says; 1 is a ledger's trouble of all others


@pytest.fixture(scope="module")
def faults():
    """The URLs of ledgers that cannot be used, by what is wrong, and a word of what is said."""
    server, noise = Postgres(), socket.create_server(("127.0.0.1", 0))

    def babble():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = noise.accept()
                with contextlib.suppress(OSError), connection:
                    connection.sendall(b"220 no ledger here\r\n")

    threading.Thread(target=babble, daemon=True).start()
    server.sql("CREATE SCHEMA newer", database="test")
    server.sql("CREATE TABLE newer.onceward (key text)", database="test")
    server.sql("CREATE TABLE newer.onceward_meta (name text, value text)", database="test")
    server.sql("INSERT INTO newer.onceward_meta VALUES ('version', '99')", database="test")
    port = noise.getsockname()[1]
    yield {
        "another login": (
            server.url.replace("//postgres@", "//nobody@")
            if "//postgres@" in server.url
            else f"{server.url}?user=nobody",
            "nobody",
        ),
        "another version": (f"{server.url}?schema=newer", "newer"),
        "another server": (f"postgresql://u@127.0.0.1:{port}/d?timeout=2", "ledger"),
        "another kind of server": (f"redis://127.0.0.1:{server.port}/0?timeout=2", "ledger"),
    }
    noise.close()
    server.stop()


CASES = [
    (command, ["another login", "another version", "another server", "another kind of server"][at % 4])
    for at, command in enumerate(COMMANDS)
]


@pytest.mark.parametrize(("command", "fault"), CASES)
def test_each_command_says_in_one_sentence_what_is_wrong(command, fault, faults, tmp_path):
    url, word = faults[fault]
    after = ("--", "true") if command in {"exec", "pipe"} else ()
    result = Cli(tmp_path).run(*COMMANDS[command], "--store", url, *after, input=b'{"id": 1}\n')
    told = result.stderr + (result.stdout or b"").decode()
    assert (result.returncode, word in told) == (STATUS.get(command, 1), True), told
    assert len(result.stderr.strip().splitlines()) <= 3, told
