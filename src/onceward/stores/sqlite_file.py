"""An SQLite ledger's file: its schema, its two connections, and what its errors mean."""

import os
import sqlite3
import time

from onceward.core.clock import Clock
from onceward.core.record import Record
from onceward.errors import StoreError
from onceward.stores.sqlite_clock import HostClock

TABLE, META = "onceward", "onceward_meta"
VERSION = 1
COLUMNS = ", ".join(Record._fields)

# Rows keep their order of arrival, so that only the key's index is written at random places; ledgers of ten million
# records stay as fast as small ones. The column names are the record's, for a person with the sqlite3 shell.
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
    expires_at REAL
)""",
    f"CREATE INDEX IF NOT EXISTS {TABLE}_expiry ON {TABLE} (expires_at) WHERE expires_at IS NOT NULL",
    f"CREATE TABLE IF NOT EXISTS {META} (name TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL)",
    f"INSERT OR IGNORE INTO {META} VALUES ('version', '{VERSION}')",  # noqa: S608 - constants of this module
)

# Codes after which the same request may succeed (sqlite.org/rescode.html).
_TRANSIENT = {
    sqlite3.SQLITE_BUSY: "another process holds its write lock; wait for it, or raise ?timeout=",
    sqlite3.SQLITE_LOCKED: "it is locked within this process",
    sqlite3.SQLITE_FULL: "the disk is full; free some space",
    sqlite3.SQLITE_IOERR: "the disk failed to read or write",
    sqlite3.SQLITE_NOMEM: "there is no memory left",
    sqlite3.SQLITE_PROTOCOL: "its lock could not be taken",
}
_FOR_GOOD = {
    sqlite3.SQLITE_NOTADB: "the file is not an SQLite database; give another path, nothing in it was changed",
    sqlite3.SQLITE_CORRUPT: "the database is damaged; restore it, or recover it with `sqlite3 FILE .recover`",
    sqlite3.SQLITE_READONLY: "the file or its folder is read-only for this user; a ledger must be written to",
    sqlite3.SQLITE_PERM: "this user may not open the file",
    sqlite3.SQLITE_AUTH: "this user may not open the file",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened; does its folder exist, and may this user write there?",
}
_WAITING = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def translated(error: sqlite3.Error, where: str) -> StoreError:
    """Return the StoreError that says what an SQLite error means for the ledger at ``where`` and what to do."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    meaning = _TRANSIENT.get(code) or _FOR_GOOD.get(code) or "SQLite refused the request"
    return StoreError(f"ledger {where}: {meaning} ({error})", transient=code in _TRANSIENT)


class SqliteFile:
    """The connections to one ledger file, opened when first asked for. Not locked: its store does that."""

    def __init__(self, path: str, timeout: float, synchronous: str, clock: Clock | None) -> None:
        if synchronous not in {"FULL", "NORMAL"}:
            raise ValueError(f"synchronous={synchronous!r}: give FULL (survives a power cut) or NORMAL (faster)")
        if not 0 <= timeout < 1e6:
            raise ValueError(f"timeout={timeout!r}: give the seconds to wait for the file's write lock")
        self.path = path
        self._timeout = timeout
        self._synchronous = synchronous
        self._host = HostClock() if clock is None else None
        self.now: Clock = clock or self._host or (lambda: 0.0)
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a connection for reads."""
        return self._reader is not None

    def reader(self) -> sqlite3.Connection:
        """Return the connection for reads."""
        if self._reader is None:
            self._reader = self._open()
        return self._reader

    def writer(self) -> sqlite3.Connection:
        """Return the connection for writes, in no transaction."""
        if self._writer is not None and self._writer.in_transaction:  # an interrupt kept it from being mended
            self._writer.close()
            self._writer = None
        if self._writer is None:
            self._writer = self._open()
        return self._writer

    def mend_reader(self, error: BaseException) -> None:
        """After an error: keep the connection if it only waited in vain, else start afresh."""
        self._reader = _mended(self._reader, error)

    def mend_writer(self, error: BaseException) -> None:
        """After an error: roll back, and keep the connection if it only waited in vain, else start afresh."""
        self._writer = _mended(self._writer, error)

    def close(self) -> None:
        """Close both connections."""
        for connection in (self._reader, self._writer):
            if connection is not None:
                connection.close()
        self._reader = self._writer = None

    def check_same(self, connection: sqlite3.Connection) -> None:
        """Raise ValueError unless ``connection``'s main database is this file."""
        main = next((row[2] for row in connection.execute("PRAGMA database_list") if row[1] == "main"), "")
        if not main or not os.path.exists(self.path) or not os.path.samefile(main, self.path):  # noqa: PTH110, PTH121 - as above
            raise ValueError(
                f"the connection is to {main or 'a database in memory'}, the ledger is {self.path}: an effect commits "
                "together with its record only in the same file"
            )

    def _open(self) -> sqlite3.Connection:
        if sqlite3.sqlite_version_info < (3, 35):
            raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old for a ledger; onceward needs 3.35 or newer")
        connection = sqlite3.connect(self.path, timeout=self._timeout, isolation_level=None, check_same_thread=False)
        try:
            # WAL is a property of the file; asking for it again is free. It lets readers go on while one writes.
            self._check_wal(self._turned_to_wal(connection))
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            meta = self._meta(connection)
            if meta.get("version") != str(VERSION) or (self._host and meta.get("boot") != self._host.boot):
                self._prepare(connection)
                meta = self._meta(connection)
            if self._host and self._host.boot:
                self._host.anchor = float(meta["anchor"])
        except BaseException:
            connection.close()
            raise
        return connection

    def _turned_to_wal(self, connection: sqlite3.Connection) -> str:
        """Ask for WAL. SQLite does not wait by itself when another connection is turning a new file at this moment."""
        patience = time.monotonic() + self._timeout
        while True:
            try:
                return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in _WAITING or time.monotonic() >= patience:
                    raise
            time.sleep(0.005)

    def _check_wal(self, mode: str) -> None:
        if mode != "wal":
            raise StoreError(
                f"ledger {self.path}: the file cannot use write-ahead logging (it stays in mode {mode!r}); put it on a "
                "local disk, for network file systems lack what WAL needs"
            )

    def _meta(self, connection: sqlite3.Connection) -> dict[str, str]:
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (META,)).fetchone() is None:
            return {}
        meta = dict(connection.execute(f"SELECT name, value FROM {META}"))  # noqa: S608 - a constant of this module
        if meta.get("version", str(VERSION)) != str(VERSION):
            raise StoreError(
                f"ledger {self.path}: its schema is version {meta['version']!r}, and this onceward knows version {VERSION} "
                "only. If a newer onceward made it, upgrade this one; nothing in the file was changed"
            )
        return meta

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make the schema, and anchor the clock for this boot of the host."""
        connection.execute("BEGIN IMMEDIATE")
        for statement in SCHEMA:
            connection.execute(statement)
        meta = self._meta(connection)
        if self._host and self._host.boot and meta.get("boot") != self._host.boot:
            newest = connection.execute(f"SELECT created_at FROM {TABLE} ORDER BY rowid DESC LIMIT 1").fetchone()  # noqa: S608 - as above
            anchor = self._host.anchor_now(newest[0] if newest else 0.0)
            connection.executemany(
                f"INSERT OR REPLACE INTO {META} VALUES (?, ?)",  # noqa: S608 - as above
                [("boot", self._host.boot), ("anchor", repr(anchor))],
            )
        connection.execute("COMMIT")


def _mended(connection: sqlite3.Connection | None, error: BaseException) -> sqlite3.Connection | None:
    if connection is None:
        return None
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _WAITING and not connection.in_transaction:
        return connection
    connection.close()  # which rolls back
    return None
