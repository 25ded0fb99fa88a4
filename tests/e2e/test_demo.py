"""The demo: workers killed and paused, and the proof."""

import re

import pytest

from commands.command_line import Cli


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
def test_the_demo_proves_the_same_on_postgresql_and_drops_only_its_own_tables(cli, postgres15):
    tables = lambda: postgres15.sql("SELECT relname FROM pg_stat_user_tables", database="demo")
    postgres15.sql("CREATE DATABASE demo")
    store = ("--store", postgres15.url.replace("/test", "/demo"))
    run = ("demo", "--messages", "60", "--seconds", "3", "--workers", "3", *store)
    result = cli.run(*run)
    assert result.returncode == 0, result.stdout.decode() + result.stderr
    assert "Exactly once: all 60 messages took effect, each one time." in result.stdout.decode()
    assert (tables(), list(cli.folder.iterdir())) == ([], [])
    postgres15.sql("CREATE TABLE onceward_demo_effects ()", database="demo")
    refused = cli.run(*run)
    assert (refused.returncode, "already exists" in refused.stderr) == (1, True)
    assert tables() == [("onceward_demo_effects",)]
