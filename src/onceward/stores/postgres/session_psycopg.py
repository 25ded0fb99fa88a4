"""Transactions on connections of psycopg 3: its own, within which it refuses ``commit()`` and ``rollback()``.

What ``connection.transaction()`` returns is not used: it sends a ROLLBACK when it is collected, also in a forked child.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from psycopg import AsyncRawCursor, AsyncTransaction, RawCursor, Transaction
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from onceward.stores.capabilities import TransactionState
from onceward.stores.postgres.cursors import sent
from onceward.stores.postgres.session import state_of
from onceward.stores.sql.drivers import CallersDriver
from onceward.stores.sql.limits import shut
from onceward.stores.sql.queries import Row


class PsycopgDriver(CallersDriver):
    """A ``psycopg.Connection``."""

    _transaction: Any = None
    _kind: ClassVar[type[Transaction | AsyncTransaction]] = Transaction
    _enter: Any = staticmethod(Transaction.__enter__)
    _exit: Any = staticmethod(Transaction.__exit__)

    def check(self) -> None:
        """Raise ValueError if no transaction of ours can begin."""
        check_idle(self.connection)

    def start(self) -> Any:
        """Begin."""
        self._transaction = self._kind(self.connection)
        return self._enter(self._transaction)

    def fetch(self, text: str, values: Sequence[object]) -> Any:
        """Run one statement and return its rows."""
        return RawCursor(self.connection, row_factory=tuple_row).execute(text, sent(values)).fetchall()

    def finish(self) -> Any:
        """Commit."""
        return self._exit(self._transaction, None, None, None) if self._is_active else None

    def undo(self) -> Any:
        """Roll back: by psycopg's transaction, for an error. After an interrupt there, do it again."""
        if self._is_active:
            return self._exit(self._transaction, _RolledBack, _RolledBack(), None)
        # Else an interrupt came in the middle of the COMMIT.
        return self.connection.rollback() if state_of(self.connection) is TransactionState.OPEN else None

    @property
    def _is_active(self) -> bool:
        transaction = self._transaction
        return transaction is not None and transaction.status == transaction.Status.ACTIVE

    def cut(self) -> None:
        """Close the connection."""
        cut(self.connection)


class AsyncPsycopgDriver(PsycopgDriver):
    """A ``psycopg.AsyncConnection``."""

    awaited = True
    _kind = AsyncTransaction
    _enter = staticmethod(AsyncTransaction.__aenter__)
    _exit = staticmethod(AsyncTransaction.__aexit__)

    async def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement and return its rows."""
        cursor = await AsyncRawCursor(self.connection, row_factory=tuple_row).execute(text, sent(values))
        return await cursor.fetchall()


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
