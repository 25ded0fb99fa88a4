"""The demo: workers killed and paused, and the proof."""

import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from commands.command_line import Cli
from places import ROOT, SOURCES
from servers.needs import missing
from waiting import until


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


@pytest.mark.nightly
def test_the_demo_proves_the_same_on_postgresql_and_drops_its_tables(cli, postgres15):
    postgres15.sql("CREATE DATABASE demo")
    store = postgres15.url.replace("/test", "/demo")
    arguments = ("demo", "--messages", "60", "--seconds", "3", "--workers", "3", "--store", store)
    result = cli.run(*arguments)
    told = result.stdout.decode()
    assert result.returncode == 0, told + result.stderr
    assert "Exactly once: all 60 messages took effect, each one time." in told
    assert postgres15.sql("SELECT relname FROM pg_stat_user_tables", database="demo") == []
    assert list(cli.folder.iterdir()) == []


@pytest.mark.nightly
def test_a_demo_leaves_the_tables_of_another_one_alone(cli, postgres15):
    postgres15.sql("CREATE DATABASE taken")
    postgres15.sql("CREATE TABLE onceward_demo_effects ()", database="taken")
    result = cli.run("demo", "--store", postgres15.url.replace("/test", "/taken"))
    assert result.returncode == 1
    assert "already exists" in result.stderr
    assert postgres15.sql("SELECT relname FROM pg_stat_user_tables", database="taken") == [("onceward_demo_effects",)]


@pytest.mark.nightly
def test_make_demo_starts_a_postgresql_and_stops_it(postgres15):
    venv = Path(sys.executable).parents[1]
    if not (venv / "bin" / "onceward").exists() or shutil.which("make") is None:
        missing("make demo needs make, and the virtual environment that it makes itself: make test")
    environment = os.environ | {"PYTHONPATH": str(SOURCES)}
    command = ["make", "demo", "STORE=postgresql", "SECONDS=3", f"VENV={venv}", "-o", str(venv / "installed")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Exactly once" in done.stdout
    (port,) = set(re.findall(r"postgresql://postgres@127\.0\.0\.1:(\d+)/test", done.stdout))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port)), timeout=5)


@pytest.mark.nightly
def test_the_demo_shows_how_it_goes_and_leaves_nothing_when_interrupted(cli):
    controller, terminal = pty.openpty()
    process = cli.start("demo", "--seconds", "20", stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    told = b""
    while b"zombies refused" not in told:
        told += os.read(controller, 65536)
    process.send_signal(signal.SIGINT)
    until(lambda: drained(controller, process))
    os.close(controller)
    assert process.returncode == 130
    assert list(cli.folder.iterdir()) == []


def drained(controller, process):
    """Read what comes, so that the process can write it, and tell whether it has ended."""
    try:
        os.read(controller, 65536)
    except OSError:  # the terminal's other side is closed
        process.wait(60)
    return process.poll() is not None
