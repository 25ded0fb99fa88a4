"""Transactions on connections of PyMySQL and asyncmy."""

from collections.abc import Sequence
from typing import Any

from onceward.stores.capabilities import TransactionState
from onceward.stores.mysql.lane import cut, run, run_async, state_of
from onceward.stores.sql.drivers import AS_A_SELECT, CallersDriver, check_idle
from onceward.stores.sql.exchange import Row


class PymysqlDriver(CallersDriver):
    """A ``pymysql.Connection``."""

    def check(self) -> None:
        check_idle(state_of(self.connection), AS_A_SELECT)

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
