"""docs/how-to/dashboard.md names what there is."""

import inspect
import re

from onceward.cli.dashboard import VARIABLE
from onceward.cli.dashboard import dashboard as command
from onceward.dashboard import dashboard
from onceward.dashboard.actions import ACTIONS
from places import DOCS

TEXT = (DOCS / "how-to" / "dashboard.md").read_text(encoding="utf-8")


def test_every_option_and_action_is_documented():
    names = {"allow_actions", "hide_results", *inspect.signature(command).parameters}
    assert [name for name in names if f"--{name.replace('_', '-')}" not in TEXT] == []
    told = {row.strip() for row in re.findall(r"^\| ([a-z ]+) \|", TEXT, re.MULTILINE)}
    buttons = {"send": "send the kept message", "resend": "send refused messages", "drop": "forget refused messages"}
    assert {(buttons | {"retry": "retry from a step"}).get(name, name) for name in ACTIONS} - told == set()
    assert VARIABLE in TEXT


def test_the_command_takes_what_the_application_takes():
    ours = set(inspect.signature(dashboard).parameters) - {"once"}
    theirs = {"token_file": "token", "trusted_proxy": "trusted_proxies", "allow_host": "hosts"}
    given = {theirs.get(name, name) for name in inspect.signature(command).parameters}
    assert ours == given - {"store", "host", "port"}
