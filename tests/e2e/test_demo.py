"""The demo: workers killed and paused, and the proof."""

import os
import pty
import re
import signal

import pytest

from command_line import Cli, until


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


def test_the_demo_shows_a_live_table_and_leaves_nothing_when_interrupted(cli):
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
        process.wait(20)
    return process.poll() is not None
