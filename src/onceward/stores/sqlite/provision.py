"""Making an SQLite ledger ahead of its first use."""

import os
import sqlite3
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING

from onceward.core.drivers import Steps
from onceward.stores.capabilities import check_options
from onceward.stores.contract import Part
from onceward.stores.sqlite.schema import META

if TYPE_CHECKING:
    from onceward.stores.sqlite.store import SqliteStore


def found(store: "SqliteStore") -> bool:
    """Return whether there is a file (:data:`onceward.stores.capabilities.FOUND`)."""
    return os.path.exists(store.path)


def provision(store: "SqliteStore", options: AbstractSet[str]) -> Steps[list[Part]]:
    """Make the file and its schema (:data:`onceward.stores.capabilities.PROVISION`)."""
    check_options(store.url, options)
    there = found(store)
    had = there and _has_schema(store.path)
    yield from store.load("?")  # the first use makes both
    return [Part(f"file {store.path}", not there), Part("its schema", not had)]


def _has_schema(path: str) -> bool:
    connection = sqlite3.connect(f"{Path(path).as_uri()}?mode=ro", uri=True)
    try:
        return connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (META,)).fetchone() is not None
    except sqlite3.Error:  # not a database: the store has the better error
        return False
    finally:
        connection.close()
