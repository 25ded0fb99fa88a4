"""Transactions on connections of asyncmy."""

from collections.abc import Sequence

from onceward.stores.capabilities import TransactionState
from onceward.stores.mysql.connections import cut, run_async, state_of
from onceward.stores.mysql.session_pymysql import check_idle
from onceward.stores.sql.drivers import AwaitedDriver
from onceward.stores.sql.queries import Row


class AsyncmyDriver(AwaitedDriver[Sequence[str]]):
    """An ``asyncmy.Connection``."""

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
