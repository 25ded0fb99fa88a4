"""The caller's own connections and pools of asyncpg.

asyncpg sends no statement with values in one round trip before it has prepared it. With its statement cache, on by default,
each statement is prepared once for each connection. Behind a pooler such as PgBouncer, another server session can follow, which
does not know it. There each request prepares a statement without a name, and runs it before it lets the session go.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from asyncpg.exceptions import InterfaceError, PostgresError

from onceward.stores.postgres.given import PostgresAwaiting
from onceward.stores.sql.queries import Row
from onceward.stores.sql.refusals import Broken, SqlRefusal

if TYPE_CHECKING:
    from asyncpg import Connection, Pool

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class AsyncpgWays(PostgresAwaiting):
    """Runs statements with or without the statement cache."""

    _pooled: bool | None = None  # whether a pooler is between; None until the first use

    async def fetched(self, connection: Any, text: str, values: Sequence[object]) -> list[Row]:
        """Run one statement and return its rows.

        Raises:
            SqlRefusal: PostgreSQL refused it.
            Broken: the connection was lost, or did not answer in time; then it is closed.
        """
        seconds = self.timeout
        if self._pooled is None:
            asking = unnamed(connection, "SELECT pg_backend_pid()", (), seconds)
            ((pid,),) = await answered(connection, asking, seconds)
            self._pooled = pid != connection.get_server_pid()  # a pooler tells its own numbers
        if self._pooled:
            return await answered(connection, unnamed(connection, text, values, seconds), seconds)
        return await answered(connection, connection.fetch(text, *values, timeout=seconds), seconds)


class GivenAsyncpgPool(AsyncpgWays):
    """An ``asyncpg.Pool``."""

    def __init__(self, pool: "Pool[Any]", timeout: float) -> None:
        super().__init__(timeout)
        self._pool = pool

    async def served(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement on the running loop."""
        try:
            async with self._pool.acquire(timeout=self.timeout) as connection:
                return await self.fetched(connection, text, values)
        except (OSError, InterfaceError) as error:  # TimeoutError is an OSError
            raise Broken(f"asyncpg: {error or 'no connection was free in time'}") from error


class GivenAsyncpgConnection(AsyncpgWays):
    """An ``asyncpg.Connection``, one statement at a time."""

    def __init__(self, connection: "Connection[Any]", timeout: float) -> None:
        super().__init__(timeout)
        self._connection = connection
        self._turn = asyncio.Lock()

    async def served(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement on the running loop."""
        async with self._turn:
            if self._connection.is_closed():
                raise Broken("the connection is closed")
            if self._connection.is_in_transaction():
                raise ValueError(
                    "the connection is in a transaction of yours, so the ledger would see and lose its writes with it. Give the "
                    "ledger a connection of its own, a pool or a URL; to commit with your transaction, use once.transaction()"
                )
            return await self.fetched(self._connection, text, values)


async def unnamed(connection: Any, text: str, values: Sequence[object], seconds: float) -> Any:
    """Run one statement without the cache and return asyncpg's rows."""
    statement = await connection.prepare(text, name="", timeout=seconds)
    return await statement.fetch(*values, timeout=seconds)


async def answered(connection: Any, asking: Coroutine[Any, Any, Any], seconds: float) -> list[Row]:
    """Await asyncpg's rows and return them as ours. Raises as :meth:`AsyncpgWays.fetched`."""
    try:
        rows = await asking
    except PostgresError as error:
        state = error.sqlstate or ""
        if not state or state.startswith(("57P", "08")):
            raise Broken(str(error)) from error
        raise SqlRefusal(state, str(error)) from error
    except TimeoutError as error:
        connection.terminate()
        raise Broken(f"the server has not answered for {seconds:g} s") from error
    except (OSError, InterfaceError) as error:
        raise Broken(str(error)) from error
    return [[_seconds(value) if type(value) is datetime else value for value in row] for row in rows]


def _seconds(time: datetime) -> float:
    return (time - _EPOCH) // _MICROSECOND / 1e6
