"""An SQLite ledger's file: its two connections, and what its errors mean."""

import os
import sqlite3
import time
from typing import NoReturn

from onceward.core.clock import Clock
from onceward.errors import StoreError
from onceward.stores.sql.columns import is_complete
from onceward.stores.sqlite import clock as ledger_clock
from onceward.stores.sqlite import place
from onceward.stores.sqlite.clock import AGREE, CONFIRM, HostClock
from onceward.stores.sqlite.schema import MINOR, make, read_meta

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
_SEVERED: list["_Connection"] = []  # of a parent process; to let go of one would close it
_WAITING = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


class _Connection(sqlite3.Connection):
    """One that a forked child can be kept from."""


def _refuse(*_: object) -> NoReturn:
    raise sqlite3.OperationalError("the connection is that of a parent process")


class _Severed(_Connection):
    """One that came into this process by a fork in the middle of a request, which goes on here."""

    execute = executemany = executescript = cursor = _refuse  # type: ignore[assignment]


def translated(error: sqlite3.Error, where: str) -> StoreError:
    """Return an SQLite error as a StoreError that says what it means for the ledger at ``where`` and what to do."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    meaning = _TRANSIENT.get(code) or _FOR_GOOD.get(code) or "SQLite refused the request"
    return StoreError(f"ledger {where}: {meaning} ({error})", transient=code in _TRANSIENT)


class SqliteFile:
    """The connections to one ledger file, opened on first use. The store does the locking.

    Attributes:
        marked: when a write last put ledger time into the file; infinite if the file has its own clock.
        checked: when the place of the file was last checked.
    """

    def __init__(self, path: str, timeout: float, synchronous: str, clock: Clock | None) -> None:
        if synchronous not in {"FULL", "NORMAL"}:
            raise ValueError(f"synchronous={synchronous!r}: give FULL (survives a power cut) or NORMAL (faster)")
        if not 0 <= timeout < 1e6:
            raise ValueError(f"timeout={timeout!r}: give the seconds to wait for the file's write lock")
        self.path = self._real = path
        self._timeout = timeout
        self._synchronous = synchronous
        self._host = HostClock() if clock is None else None
        self.now: Clock = clock or self._host or (lambda: 0.0)
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._all: list[_Connection] = []  # also those that are prepared
        self._place: place.Place | None = None
        self._compared = 0.0
        self._is_severed = False
        self.marked = 0.0 if clock is None else float("inf")
        self.checked = float("-inf")

    @property
    def is_open(self) -> bool:
        return self._reader is not None

    @property
    def is_closed(self) -> bool:
        """Whether it has no connection, also none that is being prepared."""
        return not self._all

    def reader(self) -> sqlite3.Connection:
        if self._reader is None:
            self._reader = self._open()
        return self._reader

    def writer(self) -> sqlite3.Connection:
        """Return the connection for writes, in no transaction."""
        if self._writer is not None and self._writer.in_transaction:  # an interrupt came before its rollback
            self._end(self._writer)
            self._writer = None
        if self._writer is None:
            self._writer = self._open()
        return self._writer

    def fix_reader(self, error: BaseException) -> None:
        """After an error: keep the connection if a lock was busy, else open another."""
        self._reader = self._fixed(self._reader, error)

    def fix_writer(self, error: BaseException) -> None:
        """After an error: roll back. Keep the connection if a lock was busy, else open another."""
        self._writer = self._fixed(self._writer, error)

    def close(self) -> None:
        """Close all connections."""
        self._reader = self._writer = None
        while self._all and not self._is_severed:
            self._end(self._all[-1])

    def sever(self) -> None:
        """Never use or close here the connections that came into this process by a fork.

        Another thread may have been in SQLite at the fork, with a lock that nobody releases here: so SQLite is not called.
        """
        self._is_severed = True
        self._reader = self._writer = None
        _SEVERED.extend(self._all)
        for connection in self._all:
            connection.__class__ = _Severed

    def severed(self) -> StoreError | None:
        """Return the error of a process that cannot use the ledger; None if this one can."""
        if not self._is_severed:
            return None
        return StoreError(
            f"ledger {self.path}: a signal handler forked this process in the middle of a request to the ledger, so it "
            "cannot use the ledger. Let the handler set a flag, and fork later"
        )

    def forget(self) -> None:
        """Close both connections. The next use opens whichever file is at the path then."""
        self.close()
        self._place = None

    def check_same(self, connection: sqlite3.Connection) -> None:
        """Raise ValueError unless ``connection``'s main database is this file."""
        main = next((row[2] for row in connection.execute("PRAGMA database_list") if row[1] == "main"), "")
        if not main or not os.path.exists(self.path) or not os.path.samefile(main, self.path):
            raise ValueError(
                f"the connection is to {main or 'a database in memory'}, the ledger is {self.path}: an effect commits "
                "together with its record only in the same file"
            )

    def check_place(self, now: float) -> None:
        """Raise StoreError if the file at the path is no longer the one that is open."""
        if self._is_second:
            self._check_place()
        self.checked = now

    def _check_place(self) -> None:
        if self._place is not None:
            place.check(self.path, self._real, self._place, whole=self._is_second)

    def is_behind(self) -> bool:
        """Return, from time to time, whether ledger time is behind the time of day. If so, reopen the file, which can move it."""
        host = self._host
        if host is None or not host.boot or not 0 <= (up := host.uptime()) - self._compared > CONFIRM:
            return False
        self._compared = up
        return time.time() - host() > AGREE

    def _fixed(self, connection: sqlite3.Connection | None, error: BaseException) -> sqlite3.Connection | None:
        if connection is None:
            return None
        harmless = isinstance(error, StoreError) or getattr(error, "sqlite_errorcode", 0) & 0xFF in _WAITING
        if harmless and not connection.in_transaction:
            return connection
        self._end(connection)
        return None

    def _open(self) -> sqlite3.Connection:
        if sqlite3.sqlite_version_info < (3, 35):
            raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old for a ledger; onceward needs 3.35 or newer")
        if (error := self.severed()) is not None:
            raise error
        if self._place is None:
            self._real = os.path.realpath(self.path)
            place.check_mount(self.path, self._real)
            place.make_private(self._real)
            if os.path.exists(self._real) and not os.access(self._real, os.W_OK):  # its -wal would be this user's
                raise StoreError(f"ledger {self.path}: {_FOR_GOOD[sqlite3.SQLITE_READONLY]}")
        self._check_place()
        connection, state = self._open_connection()
        try:
            if state is not None and (host := self._anchored):
                if not self._is_second and ledger_clock.is_confirmed(connection, state, host):
                    self._end(connection)
                    self._step(host)
                    connection, state = self._open_connection()
                host.set((state and state.anchor) or 0.0)
            place_now = place.identify(self.path, self._real)
            if place_now != self._place:
                self._check_place()
            self._place = place_now
        except BaseException:
            self._end(connection)
            raise
        return connection

    @property
    def _is_second(self) -> bool:
        """Whether the file is open already, by a connection that can write."""
        return self._place is not None and (self._reader or self._writer) is not None

    @property
    def _anchored(self) -> HostClock | None:
        return self._host if self._host is not None and self._host.boot else None

    def _connect(self, timeout: float) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=timeout, isolation_level=None, check_same_thread=False, factory=_Connection
        )
        self._all.append(connection)
        if (error := self.severed()) is not None:  # forked while it was being opened
            self.sever()
            raise error
        return connection

    def _end(self, connection: sqlite3.Connection) -> None:
        if self._is_severed:
            return
        connection.close()  # which rolls back
        if connection in self._all:
            self._all.remove(connection)

    def _step(self, host: HostClock) -> None:
        connection = self._connect(0)
        try:
            ledger_clock.step(connection, host)
        finally:
            self._end(connection)

    def _open_connection(self) -> tuple[sqlite3.Connection, ledger_clock.ClockState | None]:
        """Return a connection to the file, with its schema made and its clock anchored, and the anchor."""
        connection = self._connect(self._timeout)
        try:
            # WAL lets readers go on while one writes. It is a property of the file; asking again is free.
            self._turn_to_wal(connection)
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            # The anchor stays where it is while a connection is open.
            host = None if self._is_second else self._anchored
            meta, state = read_meta(connection, self.path), None
            ready = is_complete(meta, MINOR)
            if host is not None:
                host.look()
                state = ledger_clock.read(connection, meta) if ready else None
            if not ready or (host is not None and state is not None and not ledger_clock.is_set(state, host)):
                self._prepare(connection)
                state = ledger_clock.read(connection) if host is not None else None
        except BaseException:
            self._end(connection)
            raise
        return connection, state

    def _turn_to_wal(self, connection: sqlite3.Connection) -> None:
        """Ask for WAL. SQLite itself does not wait while another connection changes the mode of a new file."""
        patience = time.monotonic() + self._timeout
        while True:
            try:
                mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in _WAITING or time.monotonic() >= patience:
                    raise
            time.sleep(0.005)
        if mode != "wal":
            raise StoreError(
                f"ledger {self.path}: the file cannot use write-ahead logging (it stays in mode {mode!r}); put it on a "
                "local disk, because network file systems lack what WAL needs"
            )

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make the schema, and anchor the clock for this boot of the host."""
        connection.execute("BEGIN IMMEDIATE")
        read_meta(connection, self.path)
        make(connection)
        if host := self._anchored:
            ledger_clock.set_for_boot(connection, host)
        connection.execute("COMMIT")
