"""The caller's own connections and pools, of psycopg, blocking or asynchronous."""

from abc import ABC
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from psycopg import Error
from psycopg.pq import TransactionStatus

from onceward.stores.postgres.talk import drive, drive_async, is_alive, talk
from onceward.stores.sql.given import Awaiting, Blocking
from onceward.stores.sql.queries import Row
from onceward.stores.sql.refusals import Broken, SqlRefusal

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection
    from psycopg.pq.abc import PGconn
    from psycopg_pool import AsyncConnectionPool, ConnectionPool

    from onceward.stores.postgres.listening import Ear

_UNHARMED = (SqlRefusal, ValueError)  # after which a connection is ready for the next statement


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
        taken: list[Connection[Any]] = []
        try:
            with failing():
                self._take(taken)
            return spoken(taken[0], text, values, self.timeout)
        finally:
            for connection in taken:
                self._give_back(connection)

    def _take(self, taken: "list[Connection[Any]]") -> None:
        """Take one that is open, into a list that an interrupt does not lose."""
        for _ in range(self._pool.max_size + 1):  # each may be stale
            taken.append(self._pool.getconn(self.timeout))
            if is_alive(taken[0].pgconn):
                return
            self._give_back(closed(taken[0]))
            taken.clear()
        taken.append(self._pool.getconn(self.timeout))

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
        try:
            return spoken(self._connection, text, values, self.timeout)
        finally:
            lock.release()


class GivenAsyncPool(PostgresAwaiting):
    """A ``psycopg_pool.AsyncConnectionPool``."""

    def __init__(self, pool: "AsyncConnectionPool[Any]", timeout: float) -> None:
        super().__init__(timeout)
        self._pool = pool

    async def served(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement on the running loop."""
        taken: list[AsyncConnection[Any]] = []
        try:
            with failing():
                await self._take(taken)
            return await spoken_async(taken[0], text, values, self.timeout)
        finally:
            for connection in taken:
                await self._give_back(connection)

    async def _take(self, taken: "list[AsyncConnection[Any]]") -> None:
        for _ in range(self._pool.max_size + 1):
            taken.append(await self._pool.getconn(self.timeout))
            if is_alive(taken[0].pgconn):
                return
            await self._give_back(closed(taken[0]))
            taken.clear()
        taken.append(await self._pool.getconn(self.timeout))

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
        async with self._connection.lock:
            return await spoken_async(self._connection, text, values, self.timeout)


def spoken(connection: "Connection[Any]", text: str, values: Sequence[object], seconds: float) -> list[Row]:
    """Run one statement on a connection that is in no transaction. It is closed if that ends in the middle."""
    wire = connection.pgconn
    check_idle(wire)
    try:
        return drive(wire, talk(wire, text.encode(), values), seconds)
    except _UNHARMED:
        raise
    except BaseException:
        closed(connection)
        raise


async def spoken_async(
    connection: "AsyncConnection[Any]", text: str, values: Sequence[object], seconds: float
) -> list[Row]:
    """As :func:`spoken`, for a coroutine."""
    wire = connection.pgconn
    check_idle(wire)
    try:
        return await drive_async(wire, talk(wire, text.encode(), values), seconds)
    except _UNHARMED:
        raise
    except BaseException:
        closed(connection)
        raise


def check_idle(wire: "PGconn") -> None:
    """Raise ValueError if a connection is in a transaction, or its texts are not UTF-8."""
    status = wire.transaction_status
    if status == TransactionStatus.UNKNOWN:
        raise Broken("the connection is closed")
    if status != TransactionStatus.IDLE:
        raise ValueError(
            "the connection is in a transaction of yours, so the ledger would see and lose its writes with it. Give the ledger "
            "a connection of its own, a pool or a URL; to commit with your transaction, use once.transaction()"
        )
    encoding = wire.parameter_status(b"client_encoding")
    if encoding not in {b"UTF8", None}:
        raise ValueError(f"the connection's client_encoding is {encoding!r}, and a ledger needs UTF8")


def closed(connection: Any) -> Any:
    """Close a connection at once, without a word to the server, and return it."""
    connection.pgconn.finish()
    return connection


@contextmanager
def failing() -> "Iterator[None]":
    """Raise Broken for an error of the pool or driver."""
    try:
        yield
    except Error as error:
        raise Broken(str(error)) from error
