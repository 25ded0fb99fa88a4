"""Transactions on connections of asyncpg: its own ``connection.transaction()``, so that a nested one is a savepoint."""

from collections.abc import Sequence
from typing import Any

from onceward.stores.capabilities import TransactionState
from onceward.stores.postgres.queries import Row
from onceward.stores.postgres.session import AwaitedSession, state_of


class AsyncpgSession(AwaitedSession):
    """An ``asyncpg.Connection``, or a pool's proxy of one."""

    _transaction: Any = None

    @property
    def driver(self) -> Any:
        """The connection; a pool makes a new proxy of it each time."""
        return getattr(self.connection, "_con", None) or self.connection

    def check(self) -> None:
        """Raise ValueError if no transaction of ours can begin."""
        if self.connection.is_closed():
            raise ValueError("the connection is closed")
        if self.connection.is_in_transaction():
            raise ValueError(
                "the connection is in a transaction already; commit it first, for this one must be ours to end"
            )

    async def start(self) -> None:
        """Begin."""
        transaction = self.connection.transaction()
        self._transaction = transaction
        await transaction.start()

    async def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement and return its rows."""
        rows: Sequence[Row] = await self.connection.fetch(text, *values)
        return rows

    async def finish(self) -> None:
        """Commit."""
        transaction, self._transaction = self._transaction, None
        await transaction.commit()

    async def undo(self) -> None:
        """Roll back."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None and state_of(self.driver) is not TransactionState.LOST:
            await transaction.rollback()
        if state_of(self.driver) is TransactionState.OPEN:
            self.cut()  # it was left in disorder

    def cut(self) -> None:
        """Close the connection."""
        self.driver.terminate()
