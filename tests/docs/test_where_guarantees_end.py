"""Each box of the picture in docs/explanation/guarantees.md is true: workers die for it, and effects are counted."""

import multiprocessing
import os
import runpy
import sqlite3
import sys
import time
from contextlib import closing

import pytest

from onceward import Claim, Completed, Once, Parked
from places import DOCS

sys.path.insert(0, str(DOCS / "pictures"))
ROWS = runpy.run_path(str(DOCS / "pictures" / "guarantees.py"))["rows"]()[1:]
sys.path.remove(str(DOCS / "pictures"))
CASES = [(row[0], when, cell) for row in ROWS for when, cell in enumerate(row[1:])]
DIES_BEFORE, DIES_AFTER, COMES_LATE = 0, 1, 3  # columns; the last one
TABLE = "CREATE TABLE IF NOT EXISTS effects (idempotency TEXT UNIQUE, fence INTEGER)"


def effect(bank, way, claim):
    """Make the effect in the downstream, as one that takes keys, that checks fences, or that does neither."""
    key = claim.key("pay") if "claim.key" in way else None
    if "claim.fence" in way:
        newer = "SELECT 1 FROM effects WHERE fence > :fence"
        bank.execute(f"INSERT INTO effects SELECT NULL, :fence WHERE NOT EXISTS ({newer})", {"fence": claim.fence})
    else:
        bank.execute("INSERT INTO effects VALUES (?, NULL) ON CONFLICT DO NOTHING", (key,))


def deliver(folder, way, *, dies=None, retention=3600):
    """Deliver the message once in this process, which may die. Return whether it was a replay."""
    options = {"on_lapse": "park" if "park" in way else "retry", "retention": retention, "on_busy": 60}
    options["lease"] = min(60, retention) if dies is None else 1
    once = Once(f"sqlite:///{folder}/ledger.db", name="shop", **options)
    own = "transaction" in way
    bank = sqlite3.connect(f"{folder}/{'ledger' if own else 'bank'}.db", isolation_level=None, timeout=60)
    bank.execute(TABLE)

    def handle(claim: Claim) -> None:
        if dies == DIES_BEFORE:
            os._exit(9)
        effect(bank, way, claim)
        if dies == DIES_AFTER:
            os._exit(9)

    try:
        if not own:
            return once.run_outcome("order-42", handle).replayed
        with once.transaction("order-42", bank) as transaction:
            handle(transaction)
    except Completed:
        return True
    finally:
        once.close()
        bank.close()
    return False


def count(folder, way):
    with closing(sqlite3.connect(f"{folder}/{'ledger' if 'transaction' in way else 'bank'}.db")) as bank:
        return bank.execute("SELECT count(*) FROM effects").fetchone()[0]


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


def killed(folder, way, when):
    """Deliver it in a process that dies."""
    process = multiprocessing.get_context("spawn").Process(target=deliver, args=(folder, way), kwargs={"dies": when})
    process.start()
    process.join()
    assert process.exitcode == 9
