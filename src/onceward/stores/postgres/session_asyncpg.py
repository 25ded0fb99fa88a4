"""Transactions on connections of asyncpg: its own ``connection.transaction()``, so that a nested one is a savepoint."""

from collections.abc import Sequence
from typing import Any

from onceward.stores.capabilities import TransactionState
from onceward.stores.postgres.session import state_of
from onceward.stores.sql.drivers import CallersDriver
from onceward.stores.sql.queries import Row


class AsyncpgDriver(CallersDriver):
    """An ``asyncpg.Connection``, or a pool's proxy of one."""

    awaited = True

    _transaction: Any = None

    def __init__(self, connection: Any, seconds: float) -> None:
        super().__init__(connection, seconds)
        # A pool's proxy forgets its connection when that is lost.
        self._driver = getattr(connection, "_con", connection)

    @property
    def raw(self) -> Any:
        """The connection itself."""
        return self._driver

    def check(self) -> None:
        """Raise ValueError if no transaction of ours can begin."""
        if self._driver is None or self._driver.is_closed():
            raise ValueError("the connection is closed")
        if self._driver.is_in_transaction():
            raise ValueError(
                "the connection is in a transaction already; commit it first, for this one must be ours to end"
            )

    async def start(self) -> None:
        """Begin."""
        transaction = self._driver.transaction()
        self._transaction = transaction
        await transaction.start()

    async def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement and return its rows."""
        rows: Sequence[Row] = await self._driver.fetch(text, *values)
        return rows

    async def finish(self) -> None:
        """Commit."""
        transaction, self._transaction = self._transaction, None
        await transaction.commit()

    async def undo(self) -> None:
        """Roll back."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None and state_of(self._driver) is not TransactionState.LOST:
            await transaction.rollback()
        if state_of(self._driver) is TransactionState.OPEN:
            self.cut()  # it was left in disorder

    def cut(self) -> None:
        """Close the connection."""
        self._driver.terminate()
