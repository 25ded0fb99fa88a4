"""The list in an order, and its colours."""

import contextlib
import json
import os
import pty
import re

import pytest

from commands.command_line import Cli
from onceward.cli.records import details
from onceward.testing.bench import claim_of
from tables import each

COLOUR = re.compile(rb"\x1b\[3[0-9]m")


@pytest.fixture
def cli(tmp_path):
    made = Cli(tmp_path)
    once = made.once(name="n")
    for number, attempts in enumerate((2, 5, 1)):
        for _ in range(attempts):
            once.acquire(f"k{number}").release("again")
    once.acquire("parked").park("CardDeclined")
    once.close()
    return made


def on_a_terminal(cli, *arguments, **environment):
    """Return what a command draws on a terminal."""
    cli.env = {**cli.env, "TERM": "xterm", **environment}
    ours, its = pty.openpty()
    process = cli.start(*arguments, stdin=its, stdout=its, stderr=its)
    os.close(its)
    text = b""
    with contextlib.suppress(OSError):  # the command has ended
        while piece := os.read(ours, 65536):
            text += piece
    os.close(ours)
    assert process.wait(60) == 0
    return text


def keys(cli, *options):
    return [json.loads(line)["key"] for line in cli.run("ls", "--json", *options).stdout.splitlines()]


def test_ls_sorts_all_that_match_before_it_cuts(cli):
    assert keys(cli, "--sort", "attempts", "--limit", "2") == ["n:k1", "n:k0"]
    assert keys(cli, "--sort", "changed")[0] == "n:parked"
    assert keys(cli, "--sort", "claimed", "--status", "released", "--since", "1h") == ["n:k2", "n:k1", "n:k0"]
    assert cli.run("ls", "--sort", "size").returncode == 2
    assert cli.run("ls", "--sort", "changed", "--after", "x").returncode == 2


@pytest.mark.nightly
def test_states_have_colours_on_a_terminal_that_wants_them(cli):
    assert not COLOUR.search(cli.run("ls").stdout)
    for command in (("ls",), ("show", "n:parked"), ("stats",)):
        assert COLOUR.search(on_a_terminal(cli, *command))
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        text = on_a_terminal(cli, "ls", **environment)
        assert (b"CardDeclined" in text, COLOUR.search(text)) == (True, None)


@each(
    ("status", "lease_until", "told"),
    [
        ("COMPLETED", 100.0, "30 s ago"),
        ("RELEASED", 130.4, "0 s ago"),
        ("IN_PROGRESS", 160.0, "40 s ago"),
        ("IN_PROGRESS", 100.0, "40 s ago"),
    ],
)
def test_show_says_when_a_record_changed_last(status, lease_until, told):
    record = claim_of("n:k", status=status).at(10.0)._replace(lease_until=lease_until, updated_at=90.0)
    assert f"last change    {told}\n" in details(record, 130.0)
