"""The yardstick: the very statements of a first call and of a duplicate, on a raw sqlite3 connection."""

import os
import sqlite3
import time
from pathlib import Path

from onceward.core.record import Record
from onceward.stores.sqlite.requests import FRESH, SELECT, UPDATE
from onceward.stores.sqlite.schema import SCHEMA

WORKER = "host/1"
LATER = (None,) * (len(Record._fields) - 14)  # columns that a plain claim leaves empty


class RawLedger:
    """One connection in autocommit mode, with the settings, schema and SQL of onceward's own store."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")
        for statement in SCHEMA:
            self.connection.execute(statement)

    def first(self, key: str) -> None:
        """Look, claim and complete: two durable commits."""
        self.complete(key, *self.claim(key))

    def claim(self, key: str) -> tuple[str, int]:
        """Look, and claim; return the owner and the fence."""
        owner, now = os.urandom(16).hex(), time.time()
        fence = int(now * 1e6)
        self.connection.execute(SELECT, (key,)).fetchone()
        kept = (now + 60, 1, None, None, None, now, now + 1e6, now, WORKER, *LATER)
        assert self.connection.execute(FRESH, (key, "IN_PROGRESS", owner, fence, 0, *kept)).rowcount == 1
        return owner, fence

    def complete(self, key: str, owner: str, fence: int) -> None:
        """Complete what was claimed."""
        now = time.time()
        done = (now, 1, None, "1", None, now, now + 1e6, now, WORKER, *LATER)
        assert (
            self.connection.execute(UPDATE, ("COMPLETED", owner, fence, 1, *done, key, owner, fence, 0)).rowcount == 1
        )

    def duplicate(self, key: str) -> None:
        """Look: one read."""
        assert self.connection.execute(SELECT, (key,)).fetchone()
