"""A ledger that refuses the login, is of another version, or is no ledger at all: each command says so in one sentence, with its exit status."""

import contextlib
import socket
import threading

import pytest

from commands.command_line import Cli
from servers.postgres import Postgres

COMMANDS = {
    "ls": (),
    "stats": (),
    "show": ("key",),
    "clear": ("key",),
    "park": ("key",),
    "doctor": (),
    "exec": ("--key", "k"),
    "pipe": ("--key", "line.id"),
    "serve": ("--port", "0"),
    "dashboard": ("--port", "0"),
    "mcp": (),
    "init": (),
    "migrate": (),
    "purge": (),
    "relay": ("--once",),
}
STATUS = {"doctor": 2, "exec": 69, "pipe": 4, "relay": 4}  # as their help says; 1 is a ledger's trouble of all others


@pytest.fixture(scope="module")
def faults():
    """The URLs of ledgers that cannot be used, and a word of what is said."""
    server, noise = Postgres(), socket.create_server(("127.0.0.1", 0))

    def babble():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = noise.accept()
                with contextlib.suppress(OSError), connection:
                    connection.sendall(b"220 no ledger here\r\n")

    threading.Thread(target=babble, daemon=True).start()
    for statement in (
        "CREATE SCHEMA newer",
        "CREATE TABLE newer.onceward (key text)",
        "CREATE TABLE newer.onceward_meta (name text, value text)",
        "INSERT INTO newer.onceward_meta VALUES ('version', '99')",
    ):
        server.sql(statement, database="test")
    yield [
        (server.url.replace("//postgres@", "//nobody@"), "nobody"),  # another login
        (f"{server.url}?schema=newer", "newer"),  # another version
        (f"postgresql://u@127.0.0.1:{noise.getsockname()[1]}/d?timeout=2", "ledger"),  # another server
        (f"redis://127.0.0.1:{server.port}/0?timeout=2", "ledger"),  # another kind of server
    ]
    noise.close()
    server.stop()


@pytest.mark.parametrize(("number", "command"), list(enumerate(COMMANDS)))
def test_each_command_says_in_one_sentence_what_is_wrong(number, command, faults, tmp_path):
    url, word = faults[number % 4]
    after = ("--", "true") if command in {"exec", "pipe"} else ()
    result = Cli(tmp_path).run(command, *COMMANDS[command], "--store", url, *after, input=b'{"id": 1}\n')
    told = result.stderr + (result.stdout or b"").decode()
    assert (result.returncode, word in told) == (STATUS.get(command, 1), True), told
    assert len(result.stderr.strip().splitlines()) <= 3, told
