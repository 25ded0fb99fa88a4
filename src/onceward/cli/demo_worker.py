"""A worker of the demo, ``python -m onceward.cli.demo_worker FOLDER SECONDS``, which expects to be killed.

It takes messages from a queue in a table, and counts there what becomes of them.
"""

import os
import random
import sqlite3
import sys
import time
from pathlib import Path
from typing import Final

from onceward import Busy, Completed, LeaseLost, Once

LEASE: Final = 1.0  # seconds that a worker's claim holds
LEFT: Final = "onceward_demo_queue WHERE effect + replayed = 0"  # the messages that nobody has acknowledged
_LEDGER: Final = "ledger.db"  # the file of ledger, queue and effects
_VISIBILITY: Final = 0.8  # seconds after which a delivery that was not acknowledged is delivered again
_RECEIVE: Final = f"""UPDATE onceward_demo_queue SET visible = :now + {_VISIBILITY}, delivered = delivered + 1
    WHERE rowid = (SELECT rowid FROM {LEFT} AND visible <= :now LIMIT 1) RETURNING rowid, message"""
_INSERT: Final = "INSERT INTO onceward_demo_effects (message, worker, attempt) VALUES (?, ?, ?)"


def connected(folder: Path) -> sqlite3.Connection:
    """Open the file. It waits long for a lock, because a stopped worker may hold it."""
    connection = sqlite3.connect(folder / _LEDGER, timeout=30, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    return connection


def work(folder: Path, seconds: float) -> None:
    """Handle messages until none is left, or the demo has gone; each takes about so many seconds."""
    demo = os.getppid()
    once = Once(f"sqlite:///{folder / _LEDGER}?timeout=30", lease=LEASE, on_busy=3 * LEASE)
    table = connected(folder)
    while os.getppid() == demo and table.execute(f"SELECT 1 FROM {LEFT}").fetchone():
        for number, message in table.execute(_RECEIVE, {"now": time.time()}).fetchall() or [(None, "")]:
            if number is None:
                time.sleep(0.02)
                continue
            what = handle(once, message, table, seconds)
            table.execute(f"UPDATE onceward_demo_queue SET {what} = {what} + 1 WHERE rowid = ?", (number,))


def handle(once: Once, message: str, table: sqlite3.Connection, seconds: float) -> str:
    """Claim the message, work on it, and commit the effect together with the record. Return what became of it."""
    try:
        with once.claim(message, name="demo") as claim:
            time.sleep(seconds * random.uniform(0.5, 1.5))
            with claim.transaction(table):
                table.execute(_INSERT, (message, os.getpid(), claim.attempt))
    except Completed:
        return "replayed"
    except LeaseLost:  # this worker was a zombie: another worker has the message now
        return "refused"
    except Busy:
        return "busy"
    return "effect"


if __name__ == "__main__":
    work(Path(sys.argv[1]), float(sys.argv[2]))
