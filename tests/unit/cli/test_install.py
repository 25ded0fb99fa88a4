"""What an installation without typer and rich can do, and what the command says then."""

import os
import subprocess
import sys

import pytest

from onceward import cli
from tables import each


@pytest.fixture
def blocked(tmp_path):
    """Return the environment of a process in which typer or rich cannot be imported."""

    def environment(*missing):
        (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({missing!r}))\n")
        return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}

    return environment


@pytest.mark.slow
@each(
    ("missing", "command"),
    [
        (("typer", "rich"), ["-m", "onceward", "--version"]),
        (("typer",), ["-m", "onceward", "--version"]),
        (("rich",), ["-c", "from onceward.cli import main; main()"]),
    ],
)
def test_the_command_without_typer_and_rich_says_what_to_install(blocked, command, missing):
    result = subprocess.run([sys.executable, *command], env=blocked(*missing), capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == "onceward: the command line needs typer and rich: pip install 'onceward[cli]'\n"


@pytest.mark.slow
def test_a_command_imports_no_other_command():
    code = (
        "import sys\n"
        "from onceward.cli.app import COMMANDS, command_line\n"
        "command_line(['ls'])\n"
        "print(*(name for name, place in COMMANDS.items() if 'onceward.cli.' + place.partition(':')[0] in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ls", "purge", "stats"]  # which are in one module


def test_another_missing_module_is_not_blamed_on_the_command_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "onceward.cli.app", None)
    with pytest.raises(ModuleNotFoundError, match=r"onceward\.cli\.app"):
        cli.main()


def test_the_library_works_without_typer_and_rich(blocked):
    code = (
        "from onceward import Once, aws, batch, http, web\n"
        "once = Once('memory:')\n"
        "@once(key=lambda x: str(x), name='f')\n"
        "def f(x: int) -> int: return x\n"
        "assert f(1) == 1"
    )
    subprocess.run([sys.executable, "-c", code], env=blocked("typer", "rich"), check=True)
