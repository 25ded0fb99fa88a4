"""Transactions on connections of psycopg 3.

They are psycopg's own: within one psycopg refuses ``commit()`` and ``rollback()``, and a nested one is a savepoint. But BEGIN
is sent with our first statement, and COMMIT with our last. What ``connection.transaction()`` returns is not used: it sends a
ROLLBACK when it is collected, also in a forked child.
"""

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from psycopg import AsyncTransaction, Transaction
from psycopg.pq import ConnStatus, PipelineStatus, TransactionStatus

from onceward.stores.capabilities import TransactionState
from onceward.stores.postgres import together
from onceward.stores.postgres.connections import state_of
from onceward.stores.sql.drivers import AwaitedDriver, BlockingDriver
from onceward.stores.sql.queries import Row


# If another psycopg does not ask these, the server only warns of a second BEGIN and COMMIT.
class _Silent:
    def _get_enter_commands(self) -> Iterator[bytes]:
        return iter(())

    def _get_commit_commands(self) -> Iterator[bytes]:
        return iter(())

    def _get_rollback_commands(self) -> Iterator[bytes]:
        return iter(())


class _Transaction(_Silent, Transaction):
    """Sends nothing of its own, blocking."""


class _AsyncTransaction(_Silent, AsyncTransaction):
    """Sends nothing of its own, awaited."""


class PsycopgDriver(BlockingDriver[str, Sequence[object]]):
    """A ``psycopg.Connection``."""

    _transaction: _Transaction | None = None

    def check(self) -> None:
        """Raise ValueError if no transaction of ours can begin."""
        check_idle(self.connection)

    def start(self) -> None:
        """Begin."""
        self._transaction = _Transaction(self.connection)
        self._transaction.__enter__()

    def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement and return its rows."""
        return together.fetch(self.connection, text, values, self.seconds)

    def finish(self) -> None:
        """Commit."""
        together.finish(self.connection, self.seconds)
        self._leave(None)

    def complete(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run the last statement, and commit with it."""
        rows = together.complete(self.connection, text, values, self.seconds)
        self._leave(None)
        return rows

    def undo(self) -> None:
        """Roll back."""
        if self._transaction is not None and state_of(self.connection) is TransactionState.OPEN:
            together.roll_back(self.connection, self.seconds)
        self._leave(_RolledBack())
        if state_of(self.connection) is TransactionState.OPEN:
            self.cut()  # it was left in disorder

    def _leave(self, error: "_RolledBack | None") -> None:
        """Leave psycopg's transaction, which rolls back for an error. After an interrupt here, leave it again."""
        transaction = self._transaction
        if transaction is not None and transaction.status == transaction.Status.ACTIVE:
            transaction.__exit__(type(error) if error else None, error, None)

    def cut(self) -> None:
        """Close the connection."""
        cut(self.connection)


class AsyncPsycopgDriver(AwaitedDriver[str, Sequence[object]]):
    """A ``psycopg.AsyncConnection``."""

    _transaction: _AsyncTransaction | None = None

    def check(self) -> None:
        """Raise ValueError if no transaction of ours can begin."""
        check_idle(self.connection)

    async def start(self) -> None:
        """Begin."""
        self._transaction = _AsyncTransaction(self.connection)
        await self._transaction.__aenter__()

    async def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement and return its rows."""
        return await together.fetch_async(self.connection, text, values, self.seconds)

    async def finish(self) -> None:
        """Commit."""
        await together.finish_async(self.connection, self.seconds)
        await self._leave(None)

    async def complete(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run the last statement, and commit with it."""
        rows = await together.complete_async(self.connection, text, values, self.seconds)
        await self._leave(None)
        return rows

    async def undo(self) -> None:
        """Roll back."""
        if self._transaction is not None and state_of(self.connection) is TransactionState.OPEN:
            await together.roll_back_async(self.connection, self.seconds)
        await self._leave(_RolledBack())
        if state_of(self.connection) is TransactionState.OPEN:
            self.cut()

    async def _leave(self, error: "_RolledBack | None") -> None:
        transaction = self._transaction
        if transaction is not None and transaction.status == transaction.Status.ACTIVE:
            await transaction.__aexit__(type(error) if error else None, error, None)

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
