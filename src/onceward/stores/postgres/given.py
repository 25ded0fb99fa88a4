"""The caller's own connections and pools, of psycopg, blocking or asynchronous.

They serve blocking callers and coroutines alike: a blocking one serves coroutines in threads, and an asynchronous one serves
blocking calls, such as the heartbeat's, on the event loop that used it last.
"""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from copy import copy
from typing import TYPE_CHECKING, Any, Self

from psycopg import Error
from psycopg.pq import TransactionStatus

from onceward.stores.postgres.faults import Broken, SqlRefusal
from onceward.stores.postgres.queries import Row
from onceward.stores.postgres.talk import drive, drive_async, is_alive, talk

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection
    from psycopg.pq.abc import PGconn
    from psycopg_pool import AsyncConnectionPool, ConnectionPool

_UNHARMED = (SqlRefusal, ValueError)  # after which a connection is ready for the next statement


class Owned:
    """Belongs to the process that made it. A child that was forked must make its own.

    Args:
        timeout: seconds for one statement.
    """

    def __init__(self, timeout: float) -> None:
        self._process = os.getpid()
        self.timeout = timeout

    def patient(self, seconds: float) -> Self:
        """Return the same, with another limit of time for a statement."""
        other = copy(self)
        vars(other)["timeout"] = seconds
        return other

    def check_own(self) -> None:
        """Raise ValueError in a forked child."""
        if os.getpid() != self._process:
            raise ValueError("this process was forked after the connection was made: make its own Once in each process")


class Blocking(Owned, ABC):
    """Serves coroutines in threads."""

    @abstractmethod
    def run(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement and return its rows."""

    async def run_async(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """As :meth:`run`, in a thread."""
        return await asyncio.to_thread(self.run, text, values)

    def close(self) -> None:
        """Leave it open: it is its owner's."""


class Awaiting(Owned, ABC):
    """Serves blocking calls on the event loop that it was last used in."""

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement and return its rows, from any thread but the loop's own."""
        self.check_own()
        loop = self._loop
        if loop is None or not loop.is_running():
            raise ValueError(
                "this connection is asynchronous, and no event loop is running that it was used in: for handlers that are not "
                "asynchronous, give a URL or a psycopg_pool.ConnectionPool"
            )
        if asyncio._get_running_loop() is loop:  # the documented one raises where there is none
            raise ValueError(
                "this connection is asynchronous, and its event loop would wait for itself: await what has a form to await, "
                "or give a URL"
            )
        asking = self.run_async(text, values)
        try:
            answer = asyncio.run_coroutine_threadsafe(asking, loop)
        except RuntimeError as error:  # the loop was closed just now
            asking.close()
            raise Broken(str(error)) from error
        try:
            return answer.result(2 * self.timeout)
        except (TimeoutError, CancelledError) as error:
            answer.cancel()
            raise Broken(f"its event loop gave no answer within {2 * self.timeout:g} s") from error

    async def run_async(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement and return its rows."""
        self.check_own()
        self._loop = asyncio.get_running_loop()
        return await self.served(text, values)

    @abstractmethod
    async def served(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement on the running loop."""

    def close(self) -> None:
        """Leave it open: it is its owner's."""


class GivenPool(Blocking):
    """A ``psycopg_pool.ConnectionPool``."""

    def __init__(self, pool: "ConnectionPool[Any]", timeout: float) -> None:
        super().__init__(timeout)
        self._pool = pool

    def run(self, text: str, values: Sequence[object]) -> Sequence[Row]:
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


class GivenConnection(Blocking):
    """A ``psycopg.Connection``, one statement at a time."""

    def __init__(self, connection: "Connection[Any]", timeout: float) -> None:
        super().__init__(timeout)
        self._connection = connection

    def run(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement and return its rows."""
        self.check_own()
        lock = self._connection.lock
        if not lock.acquire(timeout=self.timeout):  # also in a signal handler, which interrupted its holder
            raise Broken(f"its connection is in use for {self.timeout:g} s: give a pool")
        try:
            return spoken(self._connection, text, values, self.timeout)
        finally:
            lock.release()


class GivenAsyncPool(Awaiting):
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


class GivenAsyncConnection(Awaiting):
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
