"""A worker of the demo, ``python -m onceward.cli.demo_worker FOLDER SECONDS``, which expects to be killed; and its queue."""

import os
import random
import sqlite3
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from onceward import Busy, Completed, LeaseLost, Once

CREATE: Final = (
    "CREATE TABLE onceward_demo_effects (message TEXT NOT NULL, worker INTEGER NOT NULL, attempt INTEGER NOT NULL)"
)
EFFECTS: Final = "SELECT message FROM onceward_demo_effects"
COUNT: Final = "SELECT count(*) FROM onceward_demo_effects"
_INSERT: Final = "INSERT INTO onceward_demo_effects (message, worker, attempt) VALUES (?, ?, ?)"
LEDGER: Final = "ledger.db"  # the file of ledger and effects

LEASE = 1.0  # seconds that a worker's claim holds
VISIBILITY = 0.8  # seconds after which a delivery that was not acknowledged is delivered again
PAUSE = 1.7  # seconds that a worker is paused: longer than its lease, so that its successor can finish

_SCHEMA = (
    "CREATE TABLE deliveries (id INTEGER PRIMARY KEY, message TEXT NOT NULL, visible_at REAL NOT NULL)",
    "CREATE TABLE events (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, worker INTEGER NOT NULL)",
    "CREATE INDEX events_kind ON events (kind)",
    "CREATE INDEX events_worker ON events (worker)",
)


class DemoQueue:
    """A connection of the process ``worker`` to the queue."""

    def __init__(self, folder: Path, worker: int = 0) -> None:
        self._db = connected(folder / "queue.db")
        # It need not survive a power cut, only kill -9.
        self._db.execute("PRAGMA synchronous = OFF")
        self._worker = worker

    def create(self, messages: Sequence[str], duplicates: float) -> int:
        """Make the queue. Send a share of the messages twice, and return how many."""
        for statement in _SCHEMA:
            self._db.execute(statement)
        twice = random.sample(messages, int(len(messages) * duplicates))
        sent = [*messages, *twice]
        random.shuffle(sent)
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO deliveries (message, visible_at) VALUES (?, 0)", [(m,) for m in sent])
        self._db.execute("COMMIT")
        return len(twice)

    def receive(self) -> tuple[int, str] | None:
        """Return the delivery's number and its message, and hide it from others for a while; None when there is none."""
        now = time.time()
        self._db.execute("BEGIN IMMEDIATE")
        row: tuple[int, str] | None = self._db.execute(
            "SELECT id, message FROM deliveries WHERE visible_at <= ? ORDER BY id LIMIT 1", (now,)
        ).fetchone()
        if row is not None:
            self._db.execute("UPDATE deliveries SET visible_at = ? WHERE id = ?", (now + VISIBILITY, row[0]))
            self.tell("delivered")
        self._db.execute("COMMIT")
        return row

    def acknowledge(self, delivery: int) -> None:
        self._db.execute("DELETE FROM deliveries WHERE id = ?", (delivery,))

    def waiting(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM deliveries").fetchone()[0])

    def tell(self, kind: str) -> None:
        self._db.execute("INSERT INTO events (kind, worker) VALUES (?, ?)", (kind, self._worker))

    def outcomes(self) -> dict[str, int]:
        return dict(self._db.execute("SELECT kind, count(*) FROM events GROUP BY kind"))

    def is_working(self, worker: int) -> bool:
        """Return whether a worker is in the middle of a message."""
        last = "SELECT kind FROM events WHERE worker = ? ORDER BY id DESC LIMIT 1"
        return bool(self._db.execute(last, (worker,)).fetchone() == ("claimed",))


def connected(path: Path) -> sqlite3.Connection:
    """Open one of the demo's files. It waits long for a lock, because a stopped worker may hold it."""
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    return connection


def work(folder: Path, seconds: float) -> None:
    """Handle messages until none is left; each takes about so many seconds."""
    queue = DemoQueue(folder, os.getpid())
    once = Once(f"sqlite:///{folder / LEDGER}?timeout=30", lease=LEASE, on_busy=3 * LEASE)
    effects = connected(folder / LEDGER)
    while queue.waiting():
        received = queue.receive()
        if received is None:
            time.sleep(0.02)
            continue
        delivery, message = received
        try:
            handle(once, message, queue, effects, seconds)
            queue.tell("effect")
        except Completed:
            queue.tell("replayed")
        except LeaseLost:
            queue.tell("refused")
            continue  # this worker was a zombie: another worker has the message now
        except Busy:
            queue.tell("busy")
            continue
        queue.acknowledge(delivery)


def handle(once: Once, message: str, queue: DemoQueue, effects: sqlite3.Connection, seconds: float) -> None:
    """Claim the message, work on it, and commit the effect together with the record."""
    with once.claim(message, name="demo") as claim:
        queue.tell("claimed")
        time.sleep(seconds * random.uniform(0.5, 1.5))
        with claim.transaction(effects):
            effects.execute(_INSERT, (message, os.getpid(), claim.attempt))


if __name__ == "__main__":
    work(Path(sys.argv[1]), float(sys.argv[2]))
