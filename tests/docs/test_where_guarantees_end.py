"""Each box of the picture in docs/explanation/guarantees.md is true: workers die for it, and effects are counted."""

import runpy
import sqlite3
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from faults.effect_delivery import DIES_AFTER, DIES_BEFORE, count, deliver, effect
from onceward import Parked
from places import DOCS, SUPPORT

sys.path.insert(0, str(DOCS / "pictures"))
ROWS = runpy.run_path(str(DOCS / "pictures" / "guarantees.py"))["rows"]()[1:]
sys.path.remove(str(DOCS / "pictures"))
CASES = [(row[0], when, cell) for row in ROWS for when, cell in enumerate(row[1:])]
COMES_LATE = 3  # the last column


@pytest.mark.parametrize(("way", "when", "cell"), CASES, ids=[f"{number}" for number in range(len(CASES))])
def test_the_box_says_how_often_the_effect_is_made(way, when, cell, tmp_path):
    retention = 5 if when == COMES_LATE else 3600
    if when in {DIES_BEFORE, DIES_AFTER}:
        killed(tmp_path, way, when)
    else:
        assert deliver(tmp_path, way, retention=retention) is False
    if "waits" in cell or "parks" in cell:
        with pytest.raises(Parked):
            deliver(tmp_path, way)
    else:
        end = time.monotonic() + 60
        while deliver(tmp_path, way, retention=retention) and when == COMES_LATE and time.monotonic() < end:
            time.sleep(0.2)
    made = {"once": 1, "again": 2, "waits": 0}[cell.replace(",", " ").replace(";", " ").split()[0]]
    assert count(tmp_path, way) == made


def test_a_downstream_that_checks_fences_refuses_a_late_request_of_the_dead_worker(tmp_path):
    way = next(row[0] for row in ROWS if "claim.fence" in row[0])
    killed(tmp_path, way, DIES_AFTER)
    deliver(tmp_path, way)
    with sqlite3.connect(tmp_path / "bank.db") as bank:
        older, newer = (row[0] for row in bank.execute("SELECT fence FROM effects ORDER BY rowid"))
        assert older < newer
        effect(bank, way, SimpleNamespace(fence=older))
    bank.close()
    assert count(tmp_path, way) == 2


def killed(folder, way, when):
    """Deliver it in a process that dies."""
    died = subprocess.run([sys.executable, str(SUPPORT / "faults/effect_delivery.py"), str(folder), way, str(when)])
    assert died.returncode == 9
