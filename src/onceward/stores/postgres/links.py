"""The connections of a ledger that was opened by its URL, for threads and event loops alike.

Each request takes a connection for itself, the last one used first. A connection that was lost, interrupted or cancelled in
the middle of a statement is closed. After a fork, the child leaves the parent's connections alone and opens its own.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakSet

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from onceward.core.clock import boottime
from onceward.stores.postgres.faults import Broken, SqlRefusal
from onceward.stores.postgres.queries import Row
from onceward.stores.postgres.talk import drive, drive_async, is_alive, talk

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn

_NAP: Final = 0.005  # seconds between two looks for a free connection
# libpq's options; those of the user go before. Keepalives find a peer that vanished while nothing was sent.
_OPTIONS: Final = {"keepalives_idle": "30", "fallback_application_name": "onceward"}


class Link:
    """OneRow connection. Dropping it closes it, except in a child that inherited it by a fork."""

    def __init__(self, all_: "WeakSet[Link]") -> None:
        self._process = os.getpid()
        self._opened: Any = None
        self.wire: PGconn
        self._all = all_
        all_.add(self)  # it counts from before it is opened

    def open(self, opened: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> None:
        """Take a new connection of psycopg's, of which the statements use only the inner one."""
        self._opened, self.wire = opened, opened.pgconn

    def close(self) -> None:
        """Close it. It counts no longer, even if the traceback of a kept exception still refers to it."""
        self._all.discard(self)
        if self._opened is None:
            return
        if os.getpid() == self._process:
            self.wire.finish()
        self._opened._closed = True  # noqa: SLF001 - psycopg would warn that nobody closed it

    def __del__(self) -> None:
        self.close()


class Links:
    """The connections to one database.

    Args:
        conninfo: libpq's connection string.
        most: connections at a time, for all threads and event loops together.
        timeout: seconds for one statement, for making a connection, and for waiting until one is free.
    """

    def __init__(self, conninfo: str, most: int, timeout: float) -> None:
        options = _OPTIONS | {"connect_timeout": str(max(2, round(timeout)))} | conninfo_to_dict(conninfo)
        self._conninfo = make_conninfo("", **options | {"client_encoding": "UTF8"})
        self._most = most
        self._timeout = timeout
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._idle: deque[Link] = deque()
        self._all: WeakSet[Link] = WeakSet()
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    def close(self) -> None:
        """Close the idle connections. OneRow in use is closed when its request ends."""
        if os.getpid() == self._process:
            for link in list(self._idle):
                link.close()
        self._reset()

    def patient(self, seconds: float) -> "Links":
        """Return one connection of its own, with another limit of time for a statement."""
        return Links(self._conninfo, 1, seconds)

    def run(self, text: str, values: Sequence[object]) -> list[Row]:
        """Run one statement and return its rows.

        Raises:
            SqlRefusal: PostgreSQL refused it.
            Broken: the connection was lost, or there is none.
        """
        home = self._home()
        link, end = self._taken(home), boottime() + self._timeout
        while link is None:
            if len(self._all) < self._most:
                link = Link(self._all)
                try:
                    link.open(psycopg.Connection.connect(self._conninfo, autocommit=True))
                except BaseException as error:
                    link.close()
                    if isinstance(error, psycopg.OperationalError):
                        raise Broken(str(error)) from error
                    raise
            else:
                self._check_patience(end)
                time.sleep(_NAP)
                link = self._taken(home)
        try:
            rows = drive(link.wire, talk(link.wire, text.encode(), values), self._timeout)
        except (SqlRefusal, ValueError):
            home.append(link)
            raise
        except BaseException as error:
            self._drop(link, home, error)
            raise
        home.append(link)
        return rows

    async def run_async(self, text: str, values: Sequence[object]) -> list[Row]:
        """As :meth:`run`, for a coroutine."""
        home = self._home()
        async with self._turn():  # those who wait get their turn in order
            link, end = self._taken(home), boottime() + self._timeout
            while link is None:
                if len(self._all) < self._most:
                    link = Link(self._all)
                    try:
                        link.open(await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True))
                    except BaseException as error:
                        link.close()
                        if isinstance(error, psycopg.OperationalError):
                            raise Broken(str(error)) from error
                        raise
                else:  # threads, or another loop, have them
                    self._check_patience(end)
                    await asyncio.sleep(_NAP)
                    link = self._taken(home)
            try:
                rows = await drive_async(link.wire, talk(link.wire, text.encode(), values), self._timeout)
            except (SqlRefusal, ValueError):
                home.append(link)
                raise
            except BaseException as error:
                self._drop(link, home, error)
                raise
            home.append(link)
            return rows

    def _home(self) -> deque[Link]:
        """Return the idle connections of this process. Those of a parent are dropped, unclosed."""
        if os.getpid() != self._process:
            self._reset()
        return self._idle

    def _taken(self, home: deque[Link]) -> Link | None:
        """Return an idle connection that is still open; drop those that are not."""
        while True:
            try:
                link = home.pop()
            except IndexError:
                return None
            if is_alive(link.wire):
                return link
            link.close()

    def _drop(self, link: Link, home: deque[Link], error: BaseException) -> None:
        link.close()
        if isinstance(error, Broken):  # the others may be as dead, and each would take as long to find out
            while (other := self._taken(home)) is not None:
                other.close()

    def _turn(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        turn = self._turns.get(loop)
        if turn is None:
            turn = self._turns[loop] = asyncio.Semaphore(self._most)
        return turn

    def _check_patience(self, end: float) -> None:
        if boottime() >= end:
            raise Broken(
                f"all {self._most} connections are in use for {self._timeout:g} s: raise pool=, or lower the concurrency"
            )
