"""The caller's own connection to the ledger's file: an effect on it commits together with its record."""

import contextlib
import sqlite3
from collections.abc import Iterator
from importlib import import_module
from typing import Any, cast

from onceward.core.drivers import Steps
from onceward.errors import StoreError
from onceward.stores.capabilities import Ended, TransactionState
from onceward.stores.sql.drivers import check_idle
from onceward.stores.sqlite.clock import MARK, MARK_EVERY
from onceward.stores.sqlite.file import SqliteFile, translated
from onceward.stores.sqlite.requests import SqlRequest
from onceward.stores.sqlite.store import SqliteStore

_MARK = "onceward_body"
_BACK, _RELEASE = f"ROLLBACK TO {_MARK}", f"RELEASE {_MARK}"


class SqliteSession:
    """The caller's connection, and the ledger's file. Its requests are statements, and those of the store's verbs."""

    awaited = False
    exclusive = True  # a transaction holds the file's write lock

    def __init__(self, connection: sqlite3.Connection, store: SqliteStore) -> None:
        self._connection = connection
        self._store = store
        self._file: SqliteFile
        self._has_begun = False  # what was open before is none of ours
        self._releasing = False  # an interrupt can come before we know that the savepoint is released

    @property
    def state(self) -> TransactionState:
        """Whether a transaction is open. It is lost if the caller has closed the connection."""
        if not self._has_begun:
            return TransactionState.ENDED
        try:
            return TransactionState.OPEN if self._connection.in_transaction else TransactionState.ENDED
        except sqlite3.Error:
            return TransactionState.LOST

    def begin(self) -> Steps[None]:
        if getattr(self._connection, "autocommit", None) is False:
            raise ValueError(
                "a connection with autocommit=False is always in a transaction, but onceward must begin and end this "
                "one. Connect with autocommit=True or with an isolation_level"
            )
        check_idle(TransactionState.OPEN if self._connection.in_transaction else TransactionState.ENDED)
        self._open()
        self._has_begun = True
        yield "BEGIN IMMEDIATE"
        yield f"SAVEPOINT {_MARK}"

    def attach(self) -> Steps[None]:
        """Use the caller's transaction. Without autocommit, begin one as the connection itself does with a write."""
        self._open()
        if self._connection.in_transaction:
            return
        if self._connection.isolation_level is None or getattr(self._connection, "autocommit", None) is True:
            raise ValueError("the connection is in no transaction, and commits each statement: begin one first")
        yield f"BEGIN {self._connection.isolation_level}"

    def _open(self) -> None:
        """Open the ledger. Raises ValueError if the connection is open on another file."""
        self._file = self._store.opened()
        with _plain(self._connection):
            self._file.check_same(self._connection)

    def began_here(self) -> Steps[bool]:
        """Look for the savepoint, and roll back to it."""
        is_there: bool = yield _BACK
        return is_there or self._releasing

    def flush(self) -> Steps[None]:
        yield from ()

    def commit(self) -> Steps[None]:
        self._releasing = True
        if not (yield _RELEASE):
            self._releasing = False
            raise Ended("the transaction that began here is over")
        yield "COMMIT"

    def rollback(self) -> Steps[None]:
        if self.state is TransactionState.OPEN:
            yield "ROLLBACK"

    def cut(self) -> None:
        self._execute("ROLLBACK")

    def exchange(self, request: Any) -> object:
        return self._execute(request) if isinstance(request, str) else self._run(request)

    async def exchange_async(self, request: Any) -> object:
        return self.exchange(request)

    def _execute(self, statement: str) -> bool:
        try:
            self._connection.execute(statement)
        except sqlite3.Error as error:
            if statement in {_BACK, _RELEASE} and isinstance(error, sqlite3.OperationalError):
                return False
            raise translated(error, self._file.path) from error  # also of another thread than the connection's own
        return True

    def _run(self, request: SqlRequest) -> object:
        connection, now = self._connection, self._file.now()
        try:
            if not connection.in_transaction:  # the next write would be made without the effect
                raise StoreError("the transaction is gone: SQLite rolled it back when the disk failed or was full")
            with _plain(connection):
                if now - self._file.marked >= MARK_EVERY:
                    connection.execute(MARK, (now,))  # each time, because it can be rolled back
                return request.run(connection, now)
        except sqlite3.Error as error:
            raise translated(error, "the transaction's connection") from error


@contextlib.contextmanager
def _plain(connection: sqlite3.Connection) -> Iterator[None]:
    """Within the block, the connection returns rows as tuples and text as str, whatever its owner set."""
    row_factory, text_factory = connection.row_factory, connection.text_factory
    connection.row_factory, connection.text_factory = None, str
    try:
        yield
    finally:
        connection.row_factory, connection.text_factory = row_factory, text_factory


def join(store: SqliteStore, connection: Any) -> SqliteSession:
    """Return the session of a connection (:data:`onceward.stores.capabilities.TRANSACTION`).

    Raises:
        TypeError: it is neither one of ``sqlite3``, nor a wrapper of one, nor one of Django's.
        ValueError: it is one of Django's to another database than SQLite.
    """
    if hasattr(connection, "in_atomic_block"):
        django = import_module("onceward.stores.sqlite.session_django")
        return cast("SqliteSession", django.DjangoSqliteSession(connection, store))
    if not hasattr(connection, "text_factory"):
        choices = "a sqlite3.Connection to the ledger's file, or one of Django's connections"
        raise TypeError(f"{type(connection).__name__}: give {choices}")
    return SqliteSession(connection, store)
