"""Transactions on connections of PyMySQL and asyncmy."""

from collections.abc import Sequence
from typing import Any

from onceward.stores.capabilities import TransactionState
from onceward.stores.mysql.lane import cut, run, run_async, state_of
from onceward.stores.sql.drivers import CallersDriver
from onceward.stores.sql.exchange import Row


class PymysqlDriver(CallersDriver):
    """A ``pymysql.Connection``."""

    def check(self) -> None:
        state = state_of(self.connection)
        if state is TransactionState.LOST:
            raise ValueError("the connection is closed")
        if state is TransactionState.OPEN:
            raise ValueError(
                "the connection is in a transaction already; commit it first, because onceward must end the one it "
                "begins. Without autocommit, each statement begins one, also a SELECT"
            )

    def fetch(self, texts: Sequence[str]) -> Any:
        return run(self.connection, texts)

    def finish(self) -> Any:
        return self.connection.commit()

    def undo(self) -> Any:
        return self.connection.rollback() if state_of(self.connection) is TransactionState.OPEN else None

    def cut(self) -> None:
        cut(self.connection)


class AsyncmyDriver(PymysqlDriver):
    """An ``asyncmy.Connection``."""

    awaited = True

    async def fetch(self, texts: Sequence[str]) -> Sequence[Row]:
        return await run_async(self.connection, texts)
