"""The connections of a ledger that was opened by its URL: of PyMySQL for threads, of asyncmy for each event loop.

A connection that was lost, interrupted or cancelled in the middle of a statement is closed. After a fork, the child leaves the parent's
connections alone and opens its own.
"""

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import pymysql

from onceward.stores.mysql.faults import LEFT
from onceward.stores.mysql.talk import fetch_async, is_silent, settings, spoken_error
from onceward.stores.mysql.wire import LedgerWire
from onceward.stores.sql.pool import Pool, PooledLink
from onceward.stores.sql.queries import Row
from onceward.stores.sql.refusals import Broken

_INHERITED: Final[list[object]] = []  # by a fork: to drop them would close what is the parent's


class MysqlLink(PooledLink):
    """One connection of PyMySQL or asyncmy."""

    wire: Any = None
    is_set = False  # whether its session has the ledger's settings

    @property
    def is_alive(self) -> bool:
        if self.wire is None or not self.is_set:
            return False
        try:
            return is_silent(_socket_of(self.wire).fileno())
        except (OSError, AttributeError, ValueError):
            return False

    def close(self, *, friendly: bool = False) -> None:
        self.home.all.discard(self)
        wire, self.wire = self.wire, None
        if wire is None:
            return
        if os.getpid() != self.process:
            _INHERITED.append(wire)
        elif isinstance(wire, pymysql.Connection):
            with contextlib.suppress(Exception):
                wire.close() if friendly else wire._force_close()  # noqa: SLF001 - the other one talks to the server
        else:
            with contextlib.suppress(Exception):
                drop(wire)


def _socket_of(wire: Any) -> Any:
    if isinstance(wire, pymysql.Connection):
        return wire._sock  # noqa: SLF001 - no public name
    return wire._transport.get_extra_info("socket")  # noqa: SLF001 - no public name


def drop(wire: Any) -> None:
    """Close a connection of asyncmy, from any thread, also if its loop is closed."""
    transport, loop = wire._transport, wire.loop  # noqa: SLF001 - no public name
    if transport is None:
        return
    if asyncio._get_running_loop() is loop:  # the documented one raises where there is none
        wire.close()
    elif loop.is_running():
        loop.call_soon_threadsafe(wire.close)
    elif not loop.is_closed():  # which runs once more when it is closed
        wire.close()
    else:  # nobody would run what a close leaves to the loop
        inner = getattr(getattr(transport, "_ssl_protocol", None), "_transport", transport)  # below TLS
        plain, inner._sock = getattr(inner, "_sock", None), None  # noqa: SLF001 - else it warns that nobody closed it
        transport._closed = True  # noqa: SLF001 - as above, with TLS
        if plain is not None:
            plain.close()


class MysqlLinks:
    """The connections to one database.

    Args:
        place: what both drivers' ``connect`` take to get there.
        most: connections at a time, for all threads together, and as many for each event loop.
        timeout: seconds for one statement, for making a connection, and for waiting until one is free.
    """

    def __init__(self, place: Mapping[str, Any], most: int, timeout: float) -> None:
        self._place = {**place, "charset": "utf8mb4", "autocommit": True, "connect_timeout": max(1, round(timeout))}
        self._most = most
        self.timeout = timeout
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._blocking = Pool(MysqlLink, self._most, LEFT)
        self._awaited: WeakKeyDictionary[asyncio.AbstractEventLoop, Pool[MysqlLink]] = WeakKeyDictionary()

    def close(self) -> None:
        """Close the idle connections. One in use is closed when its request ends."""
        if os.getpid() == self._process:
            for pool in (self._blocking, *list(self._awaited.values())):
                pool.clear(friendly=True)
        self._reset()

    def patient(self, seconds: float) -> "MysqlLinks":
        """Return one connection of its own, with another limit of time for a statement."""
        made = MysqlLinks(self._place, 1, seconds)
        made._place["connect_timeout"] = self._place["connect_timeout"]
        return made

    def run(self, texts: Sequence[str]) -> list[Row]:
        """Run statements one after another on one connection, and return the rows of all.

        Raises:
            SqlRefusal: the server refused one.
            Broken: the connection was lost, or there is none.
        """
        pool = self._blocking if os.getpid() == self._process else self._own().blocking
        link = None if pool.line else pool.free()
        if link is None:
            link = pool.found(pool.line.wait(pool.free, self.timeout), self.timeout)
        try:
            try:
                wire = link.wire
                if wire is None:
                    wire = link.wire = LedgerWire(**self._place, read_timeout=self.timeout, write_timeout=self.timeout)
                    wire.rows([settings(wire.get_server_info())])
                    link.is_set = True
                rows: list[Row] = wire.rows(texts)
            except Exception as error:
                raise spoken_error(error) or error from error
        except BaseException as error:
            pool.end(link, error)
            raise
        pool.give_back(link)
        return rows

    async def run_async(self, texts: Sequence[str]) -> list[Row]:
        """As :meth:`run`, for a coroutine."""
        pool = self._own().pool_of(asyncio.get_running_loop())
        link = None if pool.line else pool.free()
        if link is None:
            link = pool.found(await pool.line.wait_async(pool.free, self.timeout), self.timeout)
        try:
            try:
                async with asyncio.timeout(self.timeout):
                    if link.wire is None:
                        link.wire = await _opened(self._place)
                        await fetch_async(link.wire, [settings(link.wire.get_server_info())])
                        link.is_set = True
                    rows = await fetch_async(link.wire, texts)
            except TimeoutError as error:
                raise Broken(f"the server has not answered for {self.timeout:g} s") from error
            except Exception as error:
                raise spoken_error(error) or error from error
        except BaseException as error:
            pool.end(link, error)
            raise
        pool.give_back(link)
        return rows

    def _own(self) -> "MysqlLinks":
        """Return this. In a forked child it has no connections yet: those of the parent stay as they are."""
        if os.getpid() != self._process:
            _INHERITED.extend((self._blocking, dict(self._awaited)))
            self._reset()
        return self

    @property
    def blocking(self) -> Pool[MysqlLink]:
        """The connections for threads."""
        return self._blocking

    def pool_of(self, loop: asyncio.AbstractEventLoop) -> Pool[MysqlLink]:
        """Return the connections of an event loop."""
        pool = self._awaited.get(loop)
        if pool is None:
            # Another thread may be adding its own loop, which items() would not bear.
            for other in [found for ref in self._awaited.keyrefs() if (found := ref()) is not None]:
                if other.is_closed() and (theirs := self._awaited.pop(other, None)) is not None:
                    theirs.clear()
            pool = self._awaited[loop] = Pool(MysqlLink, self._most, LEFT)
        return pool


async def _opened(place: Mapping[str, Any]) -> Any:
    import asyncmy  # only coroutines need it

    return await asyncmy.connect(**place)
