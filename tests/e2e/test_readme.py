"""What the README says is true, the examples run, and the demo proves what it says under kills and pauses."""

import re
import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from commands.command_line import Cli
from onceward.cli.app import command_line
from places import DOCS, EXAMPLES, ROOT
from printed import run as printed
from printed.pages import blocks

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readmes_code_prints_what_it_says(tmp_path):
    (code,) = [block for block in blocks("README.md") if block.language == "python"]
    (shown,) = [block for block in blocks("README.md") if block.language == "text"]
    (tmp_path / "shop.py").write_text(code.text)
    for said in (shown.text, shown.text.partition("\n")[2]):
        done = subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert (done.stdout, done.returncode) == (said, 0), done.stderr


def test_the_readmes_commands_are_targets_of_make():
    made = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^\$ make (\w+)|`make (\w+)`", TEXT, re.MULTILINE):
        assert f"\n{''.join(target)}: " in made


def test_the_figures_are_those_that_were_measured():
    measured = (DOCS / "reference" / "measured.md").read_text(encoding="utf-8").replace(",", "")
    proof = TEXT.split("## Proof")[1].split("\n## ")[0]
    for figure in re.findall(r"\d[\d.,]*(?= (?:ms|µs|s|messages/s|MB)\b)", proof):
        assert re.search(rf"(?<![\d.]){re.escape(figure.replace(',', ''))}(?![\d.])", measured), figure
    for command in re.findall(r"`python (benchmarks/\w+\.py)", proof):
        assert (ROOT / command).exists()


@pytest.mark.sampled(file=1)
@pytest.mark.parametrize("file", sorted((EXAMPLES / "pipelines").glob("*.yaml")), ids=lambda file: file.stem)
def test_a_scenario_has_no_mistake_and_does_what_its_examples_say(file, tmp_path, monkeypatch):
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    monkeypatch.setenv("AUDIT", str(tmp_path / "audit"))
    for command in ("vet", "test"):
        done = CliRunner().invoke(command_line(), [command, str(file)])
        assert done.exit_code == 0, done.output


@pytest.mark.parametrize("name", ["README.md", "kinesis/README.md", "sqs_loop/README.md"])
def test_the_examples_run_as_printed(name, tmp_path):
    shutil.copytree((EXAMPLES / name).parent, tmp_path / "examples")
    printed.run(name, (EXAMPLES / name).read_text(encoding="utf-8"), tmp_path / "examples")


@pytest.fixture
def cli(tmp_path):
    made = Cli(tmp_path)
    made.env["TMPDIR"] = str(tmp_path)
    return made


def test_the_demo_proves_that_each_message_took_effect_once(cli):
    result = cli.run("demo", "--messages", "120", "--seconds", "5", "--workers", "4")
    told = result.stdout.decode()
    assert result.returncode == 0, told
    assert "Exactly once: all 120 messages took effect, each one time." in told
    assert "holds 120: 0 missing, 0 doubled" in told
    kills, pauses = (int(re.search(rf"(\d+) {word}", told)[1]) for word in ("kills", "pauses"))
    assert kills >= 2
    assert pauses >= 1
    assert list(cli.folder.iterdir()) == []
