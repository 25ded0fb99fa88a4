"""Makes or migrates an SQLite ledger. A worker that may write the file does the same on first use."""

import contextlib
import os
import sqlite3
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path

from onceward.core.drivers import Steps
from onceward.errors import StoreError
from onceward.stores.capabilities import check_options
from onceward.stores.contract import Part
from onceward.stores.sqlite.requests import SqlRequest, make_index
from onceward.stores.sqlite.schema import ADDED, DUE_INDEX, INDEXES, META, SCHEMA, TABLE, has_index
from onceward.stores.sqlite.store import SqliteStore


def found(store: SqliteStore) -> bool:
    """Return whether there is a file with something in it (:data:`onceward.stores.capabilities.FOUND`)."""
    return os.path.exists(store.path) and os.path.getsize(store.path) > 0


def provision(store: SqliteStore, options: AbstractSet[str]) -> Steps[list[Part]]:
    """Make the file and its schema (:data:`onceward.stores.capabilities.PROVISION`)."""
    check_options(store.url, options)
    there = os.path.exists(store.path)
    had = bool(read(store.path, "SELECT 1 FROM sqlite_master WHERE name = ?", META))
    yield from store.load("?")  # the first use makes both
    return [Part(f"file {store.path}", not there), Part("its schema", not had)]


def migrate(store: SqliteStore) -> Steps[list[Part]]:
    """Add the columns and the indexes that an earlier version's file lacks (:data:`onceward.stores.capabilities.MIGRATE`).

    Nobody can write the file while SQLite makes an index.

    Raises:
        StoreError: the file is no ledger, or of another major version, or this user may not write it.
    """
    there = {row[1] for row in read(store.path, f"PRAGMA table_info({TABLE})")}
    yield from store.load("?")  # the first use adds them
    had = {row[0] for row in read(store.path, "SELECT name FROM sqlite_master WHERE type = 'index'")}
    missing = INDEXES.keys() - had
    for name in missing:
        yield SqlRequest(partial(make_index, name), many=True)
    columns = [Part(f"column {name}", name not in there) for name in ADDED]
    return [*columns, *(Part(f"index {name}", name in missing) for name in INDEXES)]


def outbox(store: SqliteStore) -> Steps[None]:
    """Check that the index is there (:data:`onceward.stores.capabilities.OUTBOX`)."""
    there: bool = yield SqlRequest(partial(_is_indexed), writes=False)
    if not there:
        raise StoreError(
            f"ledger {store.path}: it has no index of messages, because an earlier version made it. Call `onceward migrate "
            f"--store {store.url}` once"
        )


def _is_indexed(connection: sqlite3.Connection, _: float) -> bool:
    return has_index(connection, DUE_INDEX)


def template(store: SqliteStore, form: str, options: AbstractSet[str]) -> str:
    """Return the SQL that makes the ledger (:data:`onceward.stores.capabilities.TEMPLATE`)."""
    check_options(store.url, options)
    if form != "sql":
        raise ValueError(f"--print {form}: SQLite's ledger is printed as sql")
    return "".join(f"{statement};\n" for statement in (*SCHEMA, *INDEXES.values()))


def read(path: str, query: str, *values: str) -> list[tuple[str, ...]]:
    """Return the rows of a query; none if the file is no database, because the store has the better error."""
    uri = f"{Path(path).as_uri()}?mode=ro"
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        return connection.execute(query, values).fetchall()
    return []
