"""What failed in a whole run is run again, alone, and nothing is forgiven that must not be."""

import subprocess
import sys

import pytest

import second_run

TESTS = """
from pathlib import Path

def test_passes_alone():
    tries = Path("tries")
    tries.write_text((tries.read_text() if tries.exists() else "") + "x")
    assert tries.read_text() != "x"

def test_fails():
    assert False

def test_torture_finds_something():
    tries = Path("torture")
    tries.write_text((tries.read_text() if tries.exists() else "") + "x")
    assert tries.read_text() != "x"

def test_passes():
    pass
"""


@pytest.fixture
def twice(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    def run(*names):
        command = [sys.executable, "-m", "pytest", "-q", *(f"test_it.py::{name}" for name in names)]
        return second_run.main(
            subprocess.run(command, cwd=tmp_path, check=False, capture_output=True).returncode, tmp_path
        )

    return run


def test_what_passes_alone_is_forgiven_and_named(twice, capfd):
    assert twice("test_passes_alone", "test_passes") == 0
    told = capfd.readouterr().out
    assert "Fix also those that pass now:\n    test_it.py::test_passes_alone" in told


@pytest.mark.parametrize("name", ["test_fails", "test_torture_finds_something"])
def test_what_fails_again_or_was_random_is_not(twice, name):
    assert twice("test_passes_alone", name) != 0


def test_many_failures_are_not_tried_again(twice, monkeypatch):
    monkeypatch.setattr(second_run, "MOST", 1)
    assert twice("test_passes_alone", "test_fails") == second_run.FAILED


@pytest.mark.parametrize("status", [2, 3, 4, 5])
def test_a_run_that_did_not_end_is_not_tried_again(tmp_path, status):
    assert second_run.main(status, tmp_path) == status
