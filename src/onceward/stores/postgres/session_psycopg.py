"""Transactions on connections of psycopg 3.

They are psycopg's own: within one psycopg refuses ``commit()`` and ``rollback()``, and a nested one is a savepoint. What
``connection.transaction()`` returns is not used. It sends a ROLLBACK when it is collected, also in a forked child.
"""

import contextlib
import os
import socket
from collections.abc import Sequence
from typing import Any

from psycopg import AsyncRawCursor, AsyncTransaction, RawCursor, Transaction
from psycopg.pq import ConnStatus, PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from onceward.stores.capabilities import TransactionState
from onceward.stores.postgres.faults import Broken
from onceward.stores.postgres.queries import Row
from onceward.stores.postgres.session import AwaitedSession, BlockingSession, state_of


class PsycopgSession(BlockingSession):
    """A ``psycopg.Connection``."""

    _transaction: Transaction | None = None

    @property
    def driver(self) -> Any:
        """The connection."""
        return self.connection

    def check(self) -> None:
        """Raise ValueError if no transaction of ours can begin."""
        check_idle(self.connection)

    def start(self) -> None:
        """Begin."""
        self._transaction = Transaction(self.connection)
        self._transaction.__enter__()

    def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement and return its rows."""
        with RawCursor(self.connection, row_factory=tuple_row) as cursor:
            return cursor.execute(text, values).fetchall()

    def finish(self) -> None:
        """Commit."""
        made, self._transaction = self._transaction, None
        assert made is not None
        made.__exit__(None, None, None)
        check_made(made)

    def undo(self) -> None:
        """Roll back."""
        made, self._transaction = self._transaction, None
        if made is not None and made.status == made.Status.ACTIVE:
            made.__exit__(_RolledBack, _RolledBack(), None)
        if state_of(self.connection) is TransactionState.OPEN:
            self.cut()  # it was left in disorder

    def cut(self) -> None:
        """Close the connection."""
        cut(self.connection)


class AsyncPsycopgSession(AwaitedSession):
    """A ``psycopg.AsyncConnection``."""

    _transaction: AsyncTransaction | None = None

    @property
    def driver(self) -> Any:
        """The connection."""
        return self.connection

    def check(self) -> None:
        """Raise ValueError if no transaction of ours can begin."""
        check_idle(self.connection)

    async def start(self) -> None:
        """Begin."""
        self._transaction = AsyncTransaction(self.connection)
        await self._transaction.__aenter__()

    async def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement and return its rows."""
        async with AsyncRawCursor(self.connection, row_factory=tuple_row) as cursor:
            return await (await cursor.execute(text, values)).fetchall()

    async def finish(self) -> None:
        """Commit."""
        made, self._transaction = self._transaction, None
        assert made is not None
        await made.__aexit__(None, None, None)
        check_made(made)

    async def undo(self) -> None:
        """Roll back."""
        made, self._transaction = self._transaction, None
        if made is not None and made.status == made.Status.ACTIVE:
            await made.__aexit__(_RolledBack, _RolledBack(), None)
        if state_of(self.connection) is TransactionState.OPEN:
            self.cut()

    def cut(self) -> None:
        """Close the connection."""
        cut(self.connection)


def cut(connection: Any) -> None:
    """Close a connection, also while a coroutine waits for its answer."""
    wire = connection.pgconn
    if wire.status == ConnStatus.BAD:
        return
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(wire.socket)) as end:
        end.shutdown(socket.SHUT_RDWR)  # which wakes that coroutine
    if not connection.lock.locked():
        wire.finish()


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


def check_made(transaction: Transaction | AsyncTransaction) -> None:
    """Raise Broken if a commit was not even sent: psycopg says nothing when the connection was lost before."""
    if transaction.status != transaction.Status.COMMITTED:
        raise Broken("the connection was lost before the COMMIT")
