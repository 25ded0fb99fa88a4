"""What `onceward migrate` does to an SQLite ledger. A worker that may write the file does the same on first use."""

import contextlib
import sqlite3
from typing import TYPE_CHECKING

from onceward.core.drivers import Steps
from onceward.stores.contract import Part
from onceward.stores.sqlite.schema import ADDED, TABLE

if TYPE_CHECKING:
    from onceward.stores.sqlite.store import SqliteStore


def migrate(store: "SqliteStore") -> Steps[list[Part]]:
    """Add the columns that an earlier version's file lacks (:data:`onceward.stores.capabilities.MIGRATE`).

    Raises:
        StoreError: the file is no ledger, or of another major version, or this user may not write it.
    """
    found: set[str] = set()
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(store.path)) as connection:
        found = {row[1] for row in connection.execute(f"PRAGMA table_info({TABLE})")}
    yield from store.load("?")  # the first use adds them
    return [Part(f"column {name}", name not in found) for name in ADDED]
