"""The connections of a ledger that was opened by its URL, for threads and event loops alike.

A connection that was lost, interrupted or cancelled in the middle of a statement is closed. After a fork, the child leaves the parent's
connections alone and opens its own.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from onceward.stores.postgres.listening import Ear
from onceward.stores.postgres.talk import drive, drive_async, is_alive, poll_for, talk
from onceward.stores.sql.polling import READ, Poller
from onceward.stores.sql.pool import Pool, PooledLink
from onceward.stores.sql.queries import Row
from onceward.stores.sql.refusals import Broken

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn

# libpq's options; those of the user go before. Keepalives find a peer that vanished while nothing was sent.
_OPTIONS: Final = {"keepalives_idle": "30", "fallback_application_name": "onceward"}


class Link(PooledLink):
    """One connection of psycopg, of which the statements use only the inner one."""

    wire: "PGconn | None" = None
    reading: Poller | None = None
    _opened: Any = None

    @property
    def is_alive(self) -> bool:
        return self.wire is not None and is_alive(self.wire, self.reading)

    def open(self, opened: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> "PGconn":
        """Take a new connection of psycopg's."""
        self._opened, self.wire = opened, opened.pgconn
        self.reading = poll_for(self.wire, READ)
        return self.wire

    def close(self, *, friendly: bool = False) -> None:
        del friendly  # libpq always says a word
        self.home.all.discard(self)  # the traceback of a kept exception may still refer to it
        if self._opened is None:
            return
        if os.getpid() == self.process and self.wire is not None:
            self.wire.finish()
        self._opened._closed = True  # noqa: SLF001 - psycopg would warn that nobody closed it


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
        self._pool = Pool(Link, self._most)

    def close(self) -> None:
        """Close the idle connections. One in use is closed when its request ends."""
        if self.ear is not None:
            self.ear.close()
        if os.getpid() == self._process:
            self._pool.clear()
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
        pool = self._own()
        link = None if pool.line else pool.free()
        if link is None:
            link = pool.found(pool.line.wait(self._free, self.timeout), self.timeout)
        try:
            wire = link.wire or link.open(psycopg.Connection.connect(self._conninfo, autocommit=True))
            rows = drive(wire, talk(wire, text.encode(), values), self.timeout, link.reading)
        except BaseException as error:
            self._end(link, error)
            raise
        link.home.give_back(link)
        return rows

    async def run_async(self, text: str, values: Sequence[object]) -> list[Row]:
        """As :meth:`run`, for a coroutine."""
        pool = self._own()
        link = None if pool.line else pool.free()
        if link is None:
            link = pool.found(await pool.line.wait_async(self._free, self.timeout), self.timeout)
        try:
            wire = link.wire or link.open(await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True))
            rows = await drive_async(wire, talk(wire, text.encode(), values), self.timeout)
        except BaseException as error:
            self._end(link, error)
            raise
        link.home.give_back(link)
        return rows

    def _own(self) -> Pool[Link]:
        """Return the connections of this process. A forked child has none yet: those of the parent are dropped, unclosed."""
        if os.getpid() != self._process:
            self._reset()
        return self._pool

    def _free(self) -> Link | None:
        return self._own().free()

    def _end(self, link: Link, error: BaseException) -> None:
        """Take back a connection after an error. Raises Broken for one of libpq."""
        if isinstance(error, ValueError):  # of a value, and nothing was sent
            link.home.give_back(link)
            return
        link.home.end(link, error)
        if isinstance(error, psycopg.OperationalError):
            raise Broken(str(error)) from error
