"""Transactions of Django's SQLite databases."""

import sqlite3
from typing import Any, Final

from django.db import Error

from onceward.core.drivers import Steps
from onceward.errors import StoreError
from onceward.stores.capabilities import TransactionState
from onceward.stores.sql.django_driver import DjangoDriver
from onceward.stores.sqlite.file import translated
from onceward.stores.sqlite.requests import SqlRequest
from onceward.stores.sqlite.session import SqliteSession
from onceward.stores.sqlite.store import SqliteStore


class DjangoSqliteDriver(DjangoDriver):
    """One of ``django.db.connections``."""

    vendor, server = "sqlite", "SQLite"

    def start(self) -> None:
        mode = self.connection.transaction_mode
        self.connection.transaction_mode = "IMMEDIATE"
        try:
            super().start()
        finally:
            self.connection.transaction_mode = mode

    def leave(self) -> None:
        """Leave Django's block, if it was not left."""
        if self._atomic is not None:
            self.undo()

    def fetch(self, statement: str) -> None:
        self.check_healthy()
        self.raw.execute(statement)

    def is_open(self) -> bool:
        return bool(self.raw.in_transaction)


_ACTS: Final = {
    "BEGIN IMMEDIATE": DjangoSqliteDriver.start,
    "COMMIT": DjangoSqliteDriver.finish,
    "ROLLBACK": DjangoSqliteDriver.undo,
}


class DjangoSqliteSession(SqliteSession):
    """One of Django's connections, which begins and ends the transaction, and the ledger's file."""

    def __init__(self, connection: Any, store: SqliteStore) -> None:
        self._driver = DjangoSqliteDriver(connection, 0)
        self._driver.check_fits()
        super().__init__(self._driver.raw, store)

    def begin(self) -> Steps[None]:
        self._driver.check()
        yield from super().begin()

    def rollback(self) -> Steps[None]:
        """Roll back. If the body has ended the transaction, leave Django's block: else each later one in this thread is refused."""
        yield from super().rollback()
        if self.state is not TransactionState.OPEN:
            self._driver.leave()

    def _execute(self, statement: str) -> bool:
        act = _ACTS.get(statement)
        if act is None:
            return super()._execute(statement)
        try:
            act(self._driver)
        except Error as error:  # Django's, of one of SQLite's
            if isinstance(error.__cause__, sqlite3.Error):
                raise translated(error.__cause__, self._file.path) from error
            raise StoreError(f"ledger {self._file.path}: {error}") from error
        return True

    def _run(self, request: SqlRequest) -> object:
        self._driver.check_healthy()
        return super()._run(request)
