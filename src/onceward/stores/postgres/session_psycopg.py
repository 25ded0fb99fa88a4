"""Transactions on connections of psycopg 3: its own, within which it refuses ``commit()`` and ``rollback()``.

What ``connection.transaction()`` returns is not used: it sends a ROLLBACK when it is collected, also in a forked child.
"""

from collections.abc import Sequence
from typing import Any

from psycopg import AsyncRawCursor, AsyncTransaction, RawCursor, Transaction
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from onceward.stores.capabilities import TransactionState
from onceward.stores.postgres.connections import state_of
from onceward.stores.postgres.values import sent
from onceward.stores.sql.drivers import CallersDriver
from onceward.stores.sql.limits import shut
from onceward.stores.sql.queries import Row


class PsycopgDriver(CallersDriver[str, Sequence[object]]):
    """A ``psycopg.Connection``."""

    _transaction: Transaction | None = None

    def check(self) -> None:
        """Raise ValueError if no transaction of ours can begin."""
        check_idle(self.connection)

    def start(self) -> None:
        """Begin."""
        self._transaction = Transaction(self.connection)
        self._transaction.__enter__()

    def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement and return its rows."""
        return RawCursor(self.connection, row_factory=tuple_row).execute(text, sent(values)).fetchall()

    def finish(self) -> None:
        """Commit."""
        self._leave(None)

    def undo(self) -> None:
        """Roll back."""
        self._leave(_RolledBack())
        if state_of(self.connection) is TransactionState.OPEN:
            self.connection.rollback()  # an interrupt came in the middle of the COMMIT

    def _leave(self, error: "_RolledBack | None") -> None:
        """Leave psycopg's transaction, which rolls back for an error. After an interrupt here, leave it again."""
        transaction = self._transaction
        if transaction is not None and transaction.status == transaction.Status.ACTIVE:
            transaction.__exit__(type(error) if error else None, error, None)

    def cut(self) -> None:
        """Close the connection."""
        cut(self.connection)


class AsyncPsycopgDriver(CallersDriver[str, Sequence[object]]):
    """A ``psycopg.AsyncConnection``."""

    awaited = True

    _transaction: AsyncTransaction | None = None

    def check(self) -> None:
        """Raise ValueError if no transaction of ours can begin."""
        check_idle(self.connection)

    async def start(self) -> None:
        """Begin."""
        self._transaction = AsyncTransaction(self.connection)
        await self._transaction.__aenter__()

    async def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement and return its rows."""
        cursor = await AsyncRawCursor(self.connection, row_factory=tuple_row).execute(text, sent(values))
        return await cursor.fetchall()

    async def finish(self) -> None:
        """Commit."""
        await self._leave(None)

    async def undo(self) -> None:
        """Roll back."""
        await self._leave(_RolledBack())
        if state_of(self.connection) is TransactionState.OPEN:
            await self.connection.rollback()

    async def _leave(self, error: "_RolledBack | None") -> None:
        transaction = self._transaction
        if transaction is not None and transaction.status == transaction.Status.ACTIVE:
            await transaction.__aexit__(type(error) if error else None, error, None)

    def cut(self) -> None:
        """Close the connection."""
        cut(self.connection)


def cut(connection: Any) -> None:
    """Close a connection, also while a coroutine waits for its answer."""
    shut(connection)  # which wakes that coroutine
    if not connection.lock.locked():
        connection.pgconn.finish()


class _RolledBack(Exception):
    """Tells psycopg to roll back."""


def check_idle(connection: Any) -> None:
    """Raise ValueError if a connection is in a transaction or in a pipeline."""
    status = connection.pgconn.transaction_status
    if status == TransactionStatus.UNKNOWN:
        raise ValueError("the connection is closed")
    if status != TransactionStatus.IDLE:
        raise ValueError(
            "the connection is in a transaction already; commit it first, for this one must be ours to end. Without "
            "autocommit, each statement begins one, also a SELECT"
        )
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        raise ValueError("the connection is in a pipeline: enter the transaction outside it")
