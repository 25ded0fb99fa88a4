"""The schema of an SQLite ledger. It changes by adding, so that an earlier version's code works on the same file."""

import sqlite3

from onceward.core.record import PARKED, RELEASED
from onceward.stores.sql.columns import check_version
from onceward.stores.sql.finding import having

TABLE, META, HIGH = "onceward", "onceward_meta", "onceward_high"
STOPPED_INDEX, DUE_INDEX, ORIGIN_INDEX = "onceward_stopped", "onceward_due", "onceward_origin"
VERSION = 1  # code that does not know it refuses the file
MINOR = 6  # counts what was added since; the file calls it its layout
ADDED = {
    "updated_at": "REAL",
    "worker": "TEXT",
    "needs": "TEXT",
    "steps": "TEXT",
    "unsent": "TEXT",
    "due_at": "REAL",
    "origin": "TEXT",
    "input": "TEXT",
    "history": "TEXT",
    "trace": "TEXT",
}  # columns that a file of a lower minor may lack

# Rows stay in order of arrival, so only the key's index is written at random places: ledgers of ten million records stay as
# fast as small ones. The columns have the record's names, for people with the sqlite3 shell.
SCHEMA = (
    f"""CREATE TABLE IF NOT EXISTS {TABLE} (
    key TEXT PRIMARY KEY NOT NULL,
    status TEXT NOT NULL,
    owner TEXT NOT NULL,
    fence INTEGER NOT NULL,
    beat INTEGER NOT NULL,
    lease_until REAL NOT NULL,
    attempts INTEGER NOT NULL,
    fingerprint TEXT,
    result TEXT,
    error TEXT,
    created_at REAL NOT NULL,
    expires_at REAL,
    {", ".join(f"{name} {kind}" for name, kind in ADDED.items())}
)""",
    f"CREATE INDEX IF NOT EXISTS {TABLE}_expiry ON {TABLE} (expires_at) WHERE expires_at IS NOT NULL",
    f"CREATE TABLE IF NOT EXISTS {META} (name TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL)",
    f"INSERT OR IGNORE INTO {META} VALUES ('version', '{VERSION}')",
    # One row: the largest fence of all deleted records, and when something was written last, give or take a few seconds.
    f"CREATE TABLE IF NOT EXISTS {HIGH} (fence INTEGER NOT NULL, written REAL NOT NULL)",
    f"INSERT INTO {HIGH} SELECT 0, 0.0 WHERE NOT EXISTS (SELECT 1 FROM {HIGH})",
    # A trigger, so that it also sees what earlier versions and people with the sqlite3 shell delete.
    f"""CREATE TRIGGER IF NOT EXISTS {TABLE}_deleted AFTER DELETE ON {TABLE}
    WHEN typeof(OLD.fence) = 'integer' AND OLD.fence < {2**53 - 1} AND OLD.fence > (SELECT fence FROM {HIGH})
    BEGIN UPDATE {HIGH} SET fence = OLD.fence; END""",
    (
        f"INSERT INTO {META} VALUES ('layout', '{MINOR}') ON CONFLICT (name) "
        f"DO UPDATE SET value = excluded.value WHERE CAST(value AS INTEGER) < {MINOR}"
    ),
)

# The records that wait for a person or a retry. Claims and completions do not touch this index; one that had the records
# in progress, too, would cost a first call 8% without fsync.
STOPPED = frozenset({PARKED, RELEASED})
# The first index has the records with unsent messages, the second those that a message led to.
INDEXES = {
    DUE_INDEX: f"CREATE INDEX IF NOT EXISTS {DUE_INDEX} ON {TABLE} (due_at, key) WHERE due_at IS NOT NULL",
    ORIGIN_INDEX: f"CREATE INDEX IF NOT EXISTS {ORIGIN_INDEX} ON {TABLE} (origin) WHERE origin IS NOT NULL",
    STOPPED_INDEX: f"CREATE INDEX IF NOT EXISTS {STOPPED_INDEX} ON {TABLE} (key) WHERE {having(STOPPED)}",
}


def read_meta(connection: sqlite3.Connection, path: str) -> dict[str, str]:
    """Return what the file says about itself; empty if it is no ledger yet.

    Raises:
        StoreError: its schema is of another version.
    """
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (META,)).fetchone() is None:
        return {}
    meta = dict(connection.execute(f"SELECT name, value FROM {META}"))
    check_version(meta, VERSION, path)
    return meta


def make(connection: sqlite3.Connection) -> None:
    """Make what is missing, in the open transaction. Additions of a newer version stay."""
    for statement in SCHEMA:
        connection.execute(statement)
    columns = {row[1] for row in connection.execute(f"PRAGMA table_info({TABLE})")}
    for name in ADDED.keys() - columns:
        connection.execute(f"ALTER TABLE {TABLE} ADD COLUMN {name} {ADDED[name]}")
    for statement in INDEXES.values():
        connection.execute(statement)
