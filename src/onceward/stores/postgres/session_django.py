"""Transactions of Django: ``once.transaction(key, connections["default"])`` is a ``transaction.atomic`` of that database."""

from collections.abc import Sequence
from typing import Any

from django.db import connections, transaction
from psycopg import Connection

from onceward.errors import StoreError
from onceward.stores.capabilities import TransactionState
from onceward.stores.postgres import together
from onceward.stores.postgres.connections import state_of
from onceward.stores.postgres.inside import named
from onceward.stores.postgres.queries import Row
from onceward.stores.postgres.session import BlockingSession
from onceward.stores.postgres.store import PostgresStore


class DjangoSession(BlockingSession):
    """One of ``django.db.connections``."""

    _atomic: Any = None

    @property
    def driver(self) -> Any:
        """The driver's connection."""
        return self.connection.connection

    def check(self) -> None:
        """Raise ValueError if no transaction of ours can begin."""
        alias = self.connection.alias
        if self.connection.vendor != "postgresql":
            raise ValueError(f"the database {alias!r} is not PostgreSQL, and the ledger is")
        if self.connection.in_atomic_block:
            raise ValueError(
                f"the database {alias!r} is in transaction.atomic() already, so this would be a savepoint: enter the "
                "transaction outside it. With ATOMIC_REQUESTS, put @transaction.non_atomic_requests on the view. In tests, "
                "use TransactionTestCase"
            )
        if not self.connection.get_autocommit():
            raise ValueError(f"autocommit is off for the database {alias!r}, so a transaction may be open already")

    def start(self) -> None:
        """Begin."""
        atomic = transaction.Atomic(self.connection.alias, savepoint=False, durable=True)
        atomic.__enter__()
        self._atomic = atomic

    def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement and return its rows."""
        self._check_healthy()
        if isinstance(self.driver, Connection):
            with self.connection.wrap_database_errors:
                return together.fetch(self.driver, text, values, self.seconds)
        with self.connection.cursor() as cursor:
            cursor.execute(named(text), {f"p{at}": value for at, value in enumerate(values, 1)})
            rows: Sequence[Row] = cursor.fetchall()
            return rows

    def finish(self) -> None:
        """Commit."""
        self._leave(None)

    def complete(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run the last statement, and commit with it if the driver can."""
        if not isinstance(self.driver, Connection):
            return super().complete(text, values)
        self._check_healthy()
        return together.complete_within(self.driver, text, values, self.finish, self.seconds)

    def _check_healthy(self) -> None:
        if self.connection.needs_rollback:
            raise StoreError(
                "the transaction must be rolled back: set_rollback(True), or a database error within the body"
            )

    def undo(self) -> None:
        """Roll back."""
        if isinstance(self.driver, Connection):
            together.forget(self.driver)
        try:
            self._leave(_RolledBack())
        finally:
            if self._is_in_disorder():
                self.cut()
                self.connection.in_atomic_block, self.connection.connection = False, None  # the next use connects anew

    def _leave(self, error: "_RolledBack | None") -> None:
        """Leave Django's block, which rolls back for an error."""
        atomic, self._atomic = self._atomic, None
        if atomic is None:
            return
        try:
            atomic.__exit__(type(error) if error else None, error, None)
        except Exception as raised:  # Django's, which can hide an interrupt of its COMMIT
            met = raised.__context__
            while isinstance(met, Exception):
                met = met.__context__
            if met is not None:
                raise met from None
            raise

    def _is_in_disorder(self) -> bool:
        """Tell whether an interrupt has stopped Django in the middle of its block."""
        if self.connection.in_atomic_block:
            return True
        return self.driver is not None and (
            not self.connection.autocommit or state_of(self.driver) is TransactionState.OPEN
        )

    def cut(self) -> None:
        """Close the driver's connection."""
        self.connection.close()


class _RolledBack(Exception):
    """Tells Django to roll back."""


def of_proxy(store: PostgresStore, proxy: Any) -> DjangoSession:
    """Return the session of ``django.db.connection``, which stands for the default database's."""
    return DjangoSession(store, connections[proxy.alias])
