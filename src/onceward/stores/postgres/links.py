"""The connections of a ledger that was opened by its URL, for threads and event loops alike.

Each request takes a connection for itself, the last one used first. Those who wait for one get it in their order. A connection
that was lost, interrupted or cancelled in the middle of a statement is closed. After a fork, the child leaves the parent's
connections alone and opens its own.
"""

import contextlib
import os
import select
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from onceward.stores.postgres.listening import Ear
from onceward.stores.postgres.talk import drive, drive_async, is_alive, poll_for, talk
from onceward.stores.sql.line import Turns
from onceward.stores.sql.queries import Row
from onceward.stores.sql.refusals import Broken, SqlRefusal

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn

# libpq's options; those of the user go before. Keepalives find a peer that vanished while nothing was sent.
_OPTIONS: Final = {"keepalives_idle": "30", "fallback_application_name": "onceward"}


class Link:
    """One connection. Dropping it closes it, except in a child that inherited it by a fork."""

    def __init__(self, home: "deque[Link]", all_: "WeakSet[Link]") -> None:
        self.home = home
        self.wire: PGconn | None = None
        self.reading: select.poll | None = None
        self._process = os.getpid()
        self._opened: Any = None
        self._all = all_
        all_.add(self)  # it counts from before it is opened

    def open(self, opened: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> "PGconn":
        """Take a new connection of psycopg's, of which the statements use only the inner one."""
        self._opened, self.wire = opened, opened.pgconn
        self.reading = poll_for(self.wire, select.POLLIN)
        return self.wire

    def close(self) -> None:
        """Close it. It counts no longer, even if the traceback of a kept exception still refers to it."""
        self._all.discard(self)
        if self._opened is None:
            return
        if os.getpid() == self._process and self.wire is not None:
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
        self.timeout = timeout
        self.ear: Ear | None = Ear(self._conninfo, timeout)
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._idle: deque[Link] = deque()
        self._all: WeakSet[Link] = WeakSet()
        self._line = Turns(lambda: bool(self._idle) or len(self._all) < self._most)

    def close(self) -> None:
        """Close the idle connections. One in use is closed when its request ends."""
        if self.ear is not None:
            self.ear.close()
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
        link = None if self._must_wait() else self._free()
        if link is None:
            link = self._found(self._line.wait(self._free, self.timeout))
        try:
            wire = link.wire or link.open(psycopg.Connection.connect(self._conninfo, autocommit=True))
            rows = drive(wire, talk(wire, text.encode(), values), self.timeout, link.reading)
        except BaseException as error:
            self._end(link, error)
            raise
        self._give_back(link)
        return rows

    async def run_async(self, text: str, values: Sequence[object]) -> list[Row]:
        """As :meth:`run`, for a coroutine."""
        link = None if self._must_wait() else self._free()
        if link is None:
            link = self._found(await self._line.wait_async(self._free, self.timeout))
        try:
            wire = link.wire or link.open(await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True))
            rows = await drive_async(wire, talk(wire, text.encode(), values), self.timeout)
        except BaseException as error:
            self._end(link, error)
            raise
        self._give_back(link)
        return rows

    def _must_wait(self) -> bool:
        """Tell whether others wait. In a forked child, those in the line are the parent's, and will never leave it."""
        return bool(self._line) and os.getpid() == self._process

    def _free(self) -> Link | None:
        """Return an idle connection that is still open, or one to open; None if all are in use."""
        if os.getpid() != self._process:
            self._reset()  # those of the parent are dropped, unclosed
        while self._idle:
            try:
                link = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if link.wire is not None and is_alive(link.wire, link.reading):
                return link
            link.close()
        if len(self._all) >= self._most:
            return None
        link = Link(self._idle, self._all)
        if len(self._all) > self._most:  # another thread did the same
            link.close()
            return None
        return link

    def _found(self, link: Link | None) -> Link:
        if link is None:
            raise Broken(
                f"all {self._most} connections are in use for {self.timeout:g} s: raise pool=, or lower the concurrency"
            )
        return link

    def _give_back(self, link: Link) -> None:
        link.home.append(link)
        if self._line:
            self._line.wake()

    def _end(self, link: Link, error: BaseException) -> None:
        """Take back a connection after an error. Raises Broken for one of libpq."""
        if isinstance(error, SqlRefusal | ValueError):
            self._give_back(link)
            return
        link.close()
        if isinstance(error, Broken):  # the others may be as dead, and each would take as long to find out
            while link.home:
                with contextlib.suppress(IndexError):
                    link.home.pop().close()
        self._line.wake()
        if isinstance(error, psycopg.OperationalError):
            raise Broken(str(error)) from error
