"""What the README says can be typed."""

import os
import re
import shlex
import shutil
import subprocess
import sys

from onceward.cli.app import app
from places import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readmes_command_runs(tmp_path):
    (command,) = re.findall(r"\$ onceward (pipe .*)", README)
    environment = os.environ | {"ONCEWARD_STORE": f"sqlite:///{tmp_path}/ledger.db"}
    argv = [sys.executable, "-m", "onceward", *shlex.split(command)]
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "ran 28, replayed 12, failed 0" in done.stderr


def test_the_readme_names_every_command():
    names = [command.name or command.callback.__name__ for command in app.registered_commands]
    assert [name for name in names if f"`{name}`" not in README and f"onceward {name}" not in README] == []


def test_the_readme_names_every_option_of_a_policy():
    from onceward import Policy

    assert [name for name in Policy._fields if f"| `{name}` |" not in README] == []


def test_the_readme_names_every_error():
    import onceward

    errors = [
        n
        for n in onceward.__all__
        if isinstance(getattr(onceward, n), type) and issubclass(getattr(onceward, n), Exception)
    ]
    assert [name for name in errors if f"`{name}`" not in README] == []
