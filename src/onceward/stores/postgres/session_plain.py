"""Transactions on connections of psycopg, psycopg2 and asyncpg."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from psycopg import AsyncRawCursor, AsyncTransaction, RawCursor, Transaction
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from onceward.stores.capabilities import TransactionState
from onceward.stores.lanes.limits import shut
from onceward.stores.postgres.cursors import as_texts
from onceward.stores.postgres.inside import pyformat
from onceward.stores.postgres.session import state_of
from onceward.stores.sql.drivers import AS_A_SELECT, CallersDriver, check_idle
from onceward.stores.sql.exchange import Row

_STATES: Final = {TransactionStatus.UNKNOWN: TransactionState.LOST, TransactionStatus.IDLE: TransactionState.ENDED}


class PsycopgDriver(CallersDriver):
    """A ``psycopg.Connection``. Its own transaction refuses ``commit()`` and ``rollback()`` within it.

    What ``connection.transaction()`` returns is not used: it sends a ROLLBACK when it is collected, also in a forked child.
    """

    _transaction: Any = None
    _kind: ClassVar[type[Transaction | AsyncTransaction]] = Transaction
    _enter: Any = staticmethod(Transaction.__enter__)
    _exit: Any = staticmethod(Transaction.__exit__)

    def check(self) -> None:
        pgconn = self.connection.pgconn
        check_idle(_STATES.get(pgconn.transaction_status, TransactionState.OPEN), AS_A_SELECT)
        if pgconn.pipeline_status != PipelineStatus.OFF:
            raise ValueError("the connection is in a pipeline: enter the transaction outside it")

    def start(self) -> Any:
        self._transaction = self._kind(self.connection)
        return self._enter(self._transaction)

    def fetch(self, text: str, values: Sequence[object]) -> Any:
        return RawCursor(self.connection, row_factory=tuple_row).execute(text, as_texts(values)).fetchall()

    def finish(self) -> Any:
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
        cut(self.connection)


class AsyncPsycopgDriver(PsycopgDriver):
    """A ``psycopg.AsyncConnection``."""

    awaited = True
    _kind = AsyncTransaction
    _enter = staticmethod(AsyncTransaction.__aenter__)
    _exit = staticmethod(AsyncTransaction.__aexit__)

    async def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        cursor = await AsyncRawCursor(self.connection, row_factory=tuple_row).execute(text, as_texts(values))
        return await cursor.fetchall()


def cut(connection: Any) -> None:
    """Close a connection, also while a coroutine waits for its answer."""
    shut(connection)  # which wakes that coroutine
    if not connection.lock.locked():
        connection.pgconn.finish()


class _RolledBack(Exception):
    """Tells psycopg to roll back."""


class Psycopg2Driver(CallersDriver):
    """A ``psycopg2.extensions.connection``, which begins a transaction with its first statement."""

    _had_autocommit = False

    def check(self) -> None:
        if self.connection.async_ and not self.connection.closed:
            raise ValueError("the connection is asynchronous, and psycopg2 cannot commit there: give a plain one")
        check_idle(state_of(self.connection), AS_A_SELECT)

    def start(self) -> None:
        """Let the first statement begin a transaction."""
        self._had_autocommit = self.connection.autocommit
        if self._had_autocommit:
            self.connection.autocommit = False

    def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        from psycopg2.extensions import cursor as plain  # the connection can have a factory of its own

        with self.connection.cursor(cursor_factory=plain) as cursor:
            cursor.execute(pyformat(text), {f"p{at}": value for at, value in enumerate(values, 1)})
            rows: Sequence[Row] = cursor.fetchall()
            return rows

    def finish(self) -> None:
        self.connection.commit()
        self._restore()

    def undo(self) -> None:
        if not self.connection.closed:
            self.connection.rollback()
            self._restore()

    def cut(self) -> None:
        self.connection.close()

    def _restore(self) -> None:
        if self._had_autocommit:
            self.connection.autocommit = True


class AsyncpgDriver(CallersDriver):
    """An ``asyncpg.Connection``, or a pool's proxy of one. A nested ``connection.transaction()`` is a savepoint."""

    awaited = True

    _transaction: Any = None

    def __init__(self, connection: Any, seconds: float) -> None:
        super().__init__(connection, seconds)
        # A pool's proxy forgets its connection when that is lost.
        self._driver = getattr(connection, "_con", connection)

    @property
    def raw(self) -> Any:
        return self._driver

    def check(self) -> None:
        check_idle(state_of(self._driver))

    async def start(self) -> None:
        transaction = self._driver.transaction()
        self._transaction = transaction
        await transaction.start()

    async def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        rows: Sequence[Row] = await self._driver.fetch(text, *values)
        return rows

    async def finish(self) -> None:
        transaction, self._transaction = self._transaction, None
        await transaction.commit()

    async def undo(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None and state_of(self._driver) is not TransactionState.LOST:
            await transaction.rollback()
        if state_of(self._driver) is TransactionState.OPEN:
            self.cut()  # it was left in disorder

    def cut(self) -> None:
        self._driver.terminate()
