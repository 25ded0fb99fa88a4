"""A worker of the demo, ``python -m onceward.cli.demo_worker FOLDER SECONDS``, which expects to be killed.

It reads a message from each line of its standard input, and writes what becomes of it.
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
_LEDGER: Final = "ledger.db"  # the file of ledger and effects
_INSERT: Final = "INSERT INTO onceward_demo_effects (message, worker, attempt) VALUES (?, ?, ?)"


def connected(folder: Path) -> sqlite3.Connection:
    """Open the file. It waits long for a lock, because a stopped worker may hold it."""
    connection = sqlite3.connect(folder / _LEDGER, timeout=30, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    return connection


def work(folder: Path, seconds: float) -> None:
    """Handle messages; each takes about so many seconds."""
    once = Once(f"sqlite:///{folder / _LEDGER}?timeout=30", lease=LEASE, on_busy=3 * LEASE)
    effects = connected(folder)
    for message in sys.stdin:
        try:
            handle(once, message.strip(), effects, seconds)
            tell("effect")
        except Completed:
            tell("replayed")
        except LeaseLost:  # this worker was a zombie: another worker has the message now
            tell("refused")
        except Busy:
            tell("busy")


def handle(once: Once, message: str, effects: sqlite3.Connection, seconds: float) -> None:
    """Claim the message, work on it, and commit the effect together with the record."""
    with once.claim(message, name="demo") as claim:
        tell("claimed")
        time.sleep(seconds * random.uniform(0.5, 1.5))
        with claim.transaction(effects):
            effects.execute(_INSERT, (message, os.getpid(), claim.attempt))


def tell(what: str) -> None:
    """Write what becomes of the message."""
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    work(Path(sys.argv[1]), float(sys.argv[2]))
