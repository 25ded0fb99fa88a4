"""The list in an order, and its colours."""

import json
import os
import pty
import re
import subprocess
import time
from multiprocessing.connection import wait

import pytest

from commands.command_line import Cli
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


class Screen:
    """A terminal that a command draws on."""

    def __init__(self, cli, *arguments, **environment):
        cli.env = {**cli.env, "TERM": "xterm", **environment}
        self._ours, its = pty.openpty()
        self._process = cli.start(*arguments, stdin=its, stdout=its, stderr=its)
        os.close(its)
        self.text = b""

    def until(self, seen, seconds=30.0):
        end = time.monotonic() + seconds
        while not seen(self.text) and time.monotonic() < end:
            if wait([self._ours], 0.1):
                try:
                    self.text += os.read(self._ours, 65536)
                except OSError:  # the command has ended
                    break
        assert seen(self.text), self.text.decode(errors="replace")

    def end(self, by=None):
        if by is not None:
            self._process.send_signal(by)
        try:
            return self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        finally:
            os.close(self._ours)


def keys(cli, *options):
    return [json.loads(line)["key"] for line in cli.run("ls", "--json", *options).stdout.splitlines()]


def test_ls_sorts_all_that_match_before_it_cuts(cli):
    assert keys(cli, "--sort", "attempts", "--limit", "2") == ["n:k1", "n:k0"]
    assert keys(cli, "--sort", "changed")[0] == "n:parked"
    assert keys(cli, "--sort", "claimed", "--status", "released", "--since", "1h") == ["n:k2", "n:k1", "n:k0"]
    assert cli.run("ls", "--sort", "size").returncode == 2
    assert cli.run("ls", "--sort", "changed", "--after", "x").returncode == 2


@pytest.mark.nightly
def test_states_have_colours_on_a_terminal_only(cli):
    assert not COLOUR.search(cli.run("ls").stdout)
    for command in (("ls",), ("show", "n:parked"), ("stats",)):
        screen = Screen(cli, *command)
        screen.until(COLOUR.search)
        assert screen.end() == 0


@pytest.mark.nightly
@each("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_that_wants_no_colours_gets_none(cli, environment):
    screen = Screen(cli, "ls", **environment)
    screen.until(lambda text: b"CardDeclined" in text)
    assert screen.end() == 0
    assert not COLOUR.search(screen.text)
