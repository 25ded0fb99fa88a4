"""Transactions on connections of PyMySQL and asyncmy."""

from collections.abc import Sequence
from typing import Any

from onceward.stores.capabilities import TransactionState
from onceward.stores.mysql.connections import cut, run, run_async, state_of
from onceward.stores.sql.drivers import CallersDriver
from onceward.stores.sql.queries import Row


class PymysqlDriver(CallersDriver[Sequence[str]]):
    """A ``pymysql.Connection``."""

    def check(self) -> None:
        """Raise ValueError if no transaction of ours can begin."""
        check_idle(self.connection)

    def fetch(self, texts: Sequence[str]) -> Sequence[Row]:
        """Run statements and return the rows of all."""
        return run(self.connection, texts)

    def finish(self) -> None:
        """Commit."""
        self.connection.commit()

    def undo(self) -> None:
        """Roll back."""
        if state_of(self.connection) is TransactionState.OPEN:
            self.connection.rollback()

    def cut(self) -> None:
        """Close the connection."""
        cut(self.connection)


class AsyncmyDriver(CallersDriver[Sequence[str]]):
    """An ``asyncmy.Connection``."""

    awaited = True

    def check(self) -> None:
        """Raise ValueError if no transaction of ours can begin."""
        check_idle(self.connection)

    async def fetch(self, texts: Sequence[str]) -> Sequence[Row]:
        """Run statements and return the rows of all."""
        return await run_async(self.connection, texts)

    async def finish(self) -> None:
        """Commit."""
        await self.connection.commit()

    async def undo(self) -> None:
        """Roll back."""
        if state_of(self.connection) is TransactionState.OPEN:
            await self.connection.rollback()

    def cut(self) -> None:
        """Close the connection."""
        cut(self.connection)


def check_idle(connection: Any) -> None:
    """Raise ValueError if a connection is closed or in a transaction."""
    state = state_of(connection)
    if state is TransactionState.LOST:
        raise ValueError("the connection is closed")
    if state is TransactionState.OPEN:
        raise ValueError(
            "the connection is in a transaction already; commit it first, for this one must be ours to end. Without autocommit, "
            "each statement begins one, also a SELECT"
        )
