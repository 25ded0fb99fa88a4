"""The caller's own connections and pools, of psycopg, blocking or asynchronous."""

from abc import ABC
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from psycopg import Error
from psycopg.pq import TransactionStatus

from onceward.stores.postgres.connections import check_encoding
from onceward.stores.postgres.cursors import cursor_of, failure, fetch, fetch_async, is_alive, reading
from onceward.stores.postgres.values import sent
from onceward.stores.sql.given import Awaiting, Blocking
from onceward.stores.sql.limits import limited
from onceward.stores.sql.queries import Row
from onceward.stores.sql.refusals import Broken

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection
    from psycopg_pool import AsyncConnectionPool, ConnectionPool

    from onceward.stores.postgres.listening import Ear

_INSTEAD: Final = "a URL or a psycopg_pool.ConnectionPool"


class PostgresBlocking(Blocking[str, Sequence[object]], ABC):
    """A blocking one. It cannot listen: a connection that listens can do nothing else."""

    ear: "Ear | None" = None


class PostgresAwaiting(Awaiting[str, Sequence[object]], ABC):
    """An asynchronous one. It cannot listen, either."""

    ear: "Ear | None" = None

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout, _INSTEAD)


class GivenPool(PostgresBlocking):
    """A ``psycopg_pool.ConnectionPool``."""

    def __init__(self, pool: "ConnectionPool[Any]", timeout: float) -> None:
        super().__init__(timeout)
        self._pool = pool

    def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement and return its rows."""
        self.check_own()
        taken: list[Connection[Any]] = []  # which an interrupt does not lose
        try:
            with _failing():
                for _ in range(self._pool.max_size + 1):  # each may be stale
                    taken.append(self._pool.getconn(self.timeout))
                    if is_alive(taken[-1], reading(taken[-1])):
                        break
                    taken[-1].close()
                    self._give_back(taken.pop())
                else:
                    raise Broken("the pool's connections are closed")
            before, taken[0].autocommit = taken[0].autocommit, True
            try:
                return _spoken(taken[0], text, values, self.timeout)
            finally:
                if _status(taken[0]) == TransactionStatus.IDLE:
                    taken[0].autocommit = before
        finally:
            for connection in taken:
                self._give_back(connection)

    def _give_back(self, connection: "Connection[Any]") -> None:
        try:
            self._pool.putconn(connection)
        except BaseException:  # a signal handler's: the pool refuses what it has already
            with suppress(ValueError):
                self._pool.putconn(connection)
            raise


class GivenConnection(PostgresBlocking):
    """A ``psycopg.Connection``, one statement at a time."""

    def __init__(self, connection: "Connection[Any]", timeout: float) -> None:
        super().__init__(timeout)
        self._connection = connection

    def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement and return its rows."""
        self.check_own()
        lock = self._connection.lock
        if not lock.acquire(timeout=self.timeout):  # also in a signal handler, which interrupted its holder
            raise Broken(f"its connection is in use for {self.timeout:g} s: give a pool")
        lock.release()
        return _spoken(self._connection, text, values, self.timeout)


class GivenAsyncPool(PostgresAwaiting):
    """A ``psycopg_pool.AsyncConnectionPool``."""

    def __init__(self, pool: "AsyncConnectionPool[Any]", timeout: float) -> None:
        super().__init__(timeout)
        self._pool = pool

    async def served(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement on the running loop."""
        taken: list[AsyncConnection[Any]] = []
        try:
            with _failing():
                for _ in range(self._pool.max_size + 1):
                    taken.append(await self._pool.getconn(self.timeout))
                    if is_alive(taken[-1], reading(taken[-1])):
                        break
                    await taken[-1].close()
                    await self._give_back(taken.pop())
                else:
                    raise Broken("the pool's connections are closed")
            before = taken[0].autocommit
            await taken[0].set_autocommit(True)
            try:
                return await _spoken_async(taken[0], text, values, self.timeout)
            finally:
                if _status(taken[0]) == TransactionStatus.IDLE:
                    await taken[0].set_autocommit(before)
        finally:
            for connection in taken:
                await self._give_back(connection)

    async def _give_back(self, connection: "AsyncConnection[Any]") -> None:
        try:
            await self._pool.putconn(connection)
        except BaseException:  # a cancellation, or a signal handler's
            with suppress(ValueError):
                await self._pool.putconn(connection)
            raise


class GivenAsyncConnection(PostgresAwaiting):
    """A ``psycopg.AsyncConnection``, one statement at a time."""

    def __init__(self, connection: "AsyncConnection[Any]", timeout: float) -> None:
        super().__init__(timeout)
        self._connection = connection

    async def served(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement on the running loop."""
        return await _spoken_async(self._connection, text, values, self.timeout)


def _spoken(connection: "Connection[Any]", text: str, values: Sequence[object], seconds: float) -> Sequence[Row]:
    """Run one statement on a connection that is in no transaction."""
    with _alone(connection), _failing(), limited(connection, seconds):
        return fetch(cursor_of(connection), text, sent(values), prepare=False)


async def _spoken_async(
    connection: "AsyncConnection[Any]", text: str, values: Sequence[object], seconds: float
) -> Sequence[Row]:
    with _alone(connection), _failing(), limited(connection, seconds):
        return await fetch_async(cursor_of(connection), text, sent(values), prepare=False)


@contextmanager
def _alone(connection: Any) -> "Iterator[None]":
    """Raise ValueError if a statement would not be committed by itself. Close the connection if it is left in the middle of one."""
    if connection.closed:
        raise Broken("the connection is closed")
    if _status(connection) in {TransactionStatus.INTRANS, TransactionStatus.INERROR}:
        raise ValueError(
            "the connection is in a transaction of yours, so the ledger would see and lose its writes with it. Give the ledger "
            "a connection of its own, a pool or a URL; to commit with your transaction, use once.transaction()"
        )
    if not connection.autocommit:
        raise ValueError(
            "the connection does not commit each statement: make it with autocommit=True, or give a pool or a URL"
        )
    check_encoding(connection)
    try:
        yield
    finally:
        if _status(connection) == TransactionStatus.ACTIVE and not connection.lock.locked():
            connection.pgconn.finish()


def _status(connection: Any) -> int:
    return int(connection.pgconn.transaction_status)


@contextmanager
def _failing() -> "Iterator[None]":
    """Raise what an error of the pool or the driver means."""
    try:
        yield
    except Error as error:
        raise failure(error) from error
