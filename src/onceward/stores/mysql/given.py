"""The caller's own connections, of PyMySQL or asyncmy."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from onceward.stores.mysql.connections import cut
from onceward.stores.mysql.talk import IN_TRANSACTION, fetch, fetch_async, settings, spoken_error
from onceward.stores.sql.given import Awaiting, Blocking
from onceward.stores.sql.limits import limited
from onceward.stores.sql.queries import Row
from onceward.stores.sql.refusals import Broken, SqlRefusal

_CHARSETS = frozenset({"utf8mb4"})
# Of connections. Two ledgers on one must not read each other's answers.
_LOCKS: Final[WeakKeyDictionary[Any, threading.Lock]] = WeakKeyDictionary()
_AWAITED: Final[WeakKeyDictionary[Any, tuple[asyncio.AbstractEventLoop, asyncio.Lock]]] = WeakKeyDictionary()


class SessionSettings:
    """Which connections have the settings of a ledger's session."""

    def __init__(self) -> None:
        self._numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # the server's, of their sessions

    def texts(self, connection: Any, charset: str, texts: Sequence[str]) -> list[str]:
        """Return the statements, after those that a session needs at first. ValueError: the connection does not fit."""
        if connection.server_status & IN_TRANSACTION:
            raise ValueError(
                "the connection is in a transaction of yours, so the ledger would see and lose its writes with it. Give the "
                "ledger a connection of its own, or a URL; to commit with your transaction, use once.transaction()"
            )
        if not connection.get_autocommit():
            raise ValueError("the connection does not commit each statement: make it with autocommit=True")
        if charset not in _CHARSETS:
            raise ValueError(f"the connection's charset is {charset!r}, and a ledger needs utf8mb4")
        if self._numbers.get(connection) == connection.thread_id():  # else its owner may have connected it anew
            return list(texts)
        return [settings(connection.get_server_info()), *texts]

    def note(self, connection: Any) -> None:
        """Note that a connection has them now."""
        self._numbers[connection] = connection.thread_id()


class GivenBlocking(Blocking[Sequence[str]]):
    """A ``pymysql.Connection``, one statement at a time."""

    def __init__(self, connection: Any, timeout: float) -> None:
        super().__init__(timeout)
        self._connection = connection
        self._settings = SessionSettings()
        self._lock = _LOCKS.setdefault(connection, threading.Lock())

    def fetch(self, texts: Sequence[str]) -> list[Row]:
        """Run statements one after another, and return the rows of all."""
        self.check_own()
        if not self._lock.acquire(timeout=self.timeout):  # also in a signal handler, which interrupted its holder
            raise Broken(f"its connection is in use for {self.timeout:g} s: give a URL, which has a pool")
        connection = self._connection
        try:
            with limited(connection, self.timeout):
                rows = fetch(connection, self._settings.texts(connection, connection.charset, texts))
            self._settings.note(connection)
        except (SqlRefusal, ValueError):
            raise
        except BaseException as error:
            met = spoken_error(error)
            if not isinstance(met, SqlRefusal):
                cut(connection)  # it was left in the middle of a statement
            raise (met or error) from error
        finally:
            self._lock.release()
        return rows


class GivenAwaited(Awaiting[Sequence[str]]):
    """An ``asyncmy`` connection or pool.

    Args:
        given: it.
        timeout: seconds for one statement.
        pools: whether it is a pool.
    """

    def __init__(self, given: Any, timeout: float, *, pools: bool) -> None:
        super().__init__(timeout, "a URL")
        self._given, self._pools = given, pools
        self._settings = SessionSettings()

    async def served(self, texts: Sequence[str]) -> list[Row]:
        """Run statements one after another on the running loop, and return the rows of all."""
        try:
            async with asyncio.timeout(self.timeout):
                if self._pools:
                    async with self._given.acquire() as connection:
                        return await self._spoken(connection, texts)
                async with self._lock():
                    return await self._spoken(self._given, texts)
        except TimeoutError as error:
            raise Broken(f"the server has not answered for {self.timeout:g} s") from error

    def _lock(self) -> asyncio.Lock:
        """Return the lock of the connection, on this loop."""
        loop, (known, lock) = asyncio.get_running_loop(), _AWAITED.get(self._given, (None, asyncio.Lock()))
        if known is not loop:
            lock = asyncio.Lock()
            _AWAITED[self._given] = loop, lock
        return lock

    async def _spoken(self, connection: Any, texts: Sequence[str]) -> list[Row]:
        try:
            rows = await fetch_async(connection, self._settings.texts(connection, connection._charset, texts))  # noqa: SLF001 - no public name
            self._settings.note(connection)
        except (SqlRefusal, ValueError):
            raise
        except BaseException as error:
            met = spoken_error(error)
            if not isinstance(met, SqlRefusal):
                connection.close()
            raise (met or error) from error
        return rows
