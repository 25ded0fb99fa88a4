"""A lane to PostgreSQL: a connection of psycopg, on which the statements are prepared.

psycopg sets no limit of time to a server that does not answer, so ``wait`` does it here. A connection that was interrupted,
cancelled or too slow in the middle of a statement is closed at once.
"""

import os
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

import psycopg
from psycopg import waiting
from psycopg.abc import PQGen
from psycopg.adapt import Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Format
from psycopg.rows import tuple_row

from onceward.core.clock import boottime
from onceward.stores.lanes import LedgerLanes
from onceward.stores.lanes.lane import ServerLane
from onceward.stores.postgres.faults import LEFT
from onceward.stores.postgres.listening import Ear
from onceward.stores.postgres.values import sent
from onceward.stores.sql.polling import READ, Poller, poller
from onceward.stores.sql.queries import Row
from onceward.stores.sql.refusals import Broken, SqlRefusal

_TICK: Final = 0.1  # seconds between two looks at the time
# libpq's options; those of the user go before. Keepalives find a peer that vanished while nothing was sent.
_OPTIONS: Final = {"keepalives_idle": "30", "fallback_application_name": "onceward"}
_PID: Final = "SELECT pg_backend_pid()"
# The plan that the tables need when they are large, whatever their size when a statement is prepared.
_SETTINGS: Final = (
    "SELECT set_config('enable_seqscan', 'off', false), set_config('jit', 'off', false), "
    "set_config('plan_cache_mode', 'force_generic_plan', false)"
)


class _Seconds(Loader):
    """A timestamptz as seconds since 1970: its microseconds are exact in a float for this century and the next."""

    format = Format.BINARY

    def load(self, data: Any) -> float:
        return (int.from_bytes(data, "big", signed=True) + 946_684_800_000_000) / 1e6


def _bounded(steps: PQGen[Any], seconds: float) -> PQGen[Any]:
    """Run psycopg's steps for so many seconds. Raises Broken after that."""
    end = boottime() + seconds
    try:
        event = next(steps)
        while True:
            ready = yield event
            if not ready and boottime() >= end:
                raise Broken(f"the server has not answered for {seconds:g} s")
            event = steps.send(ready)
    except StopIteration as ended:
        return ended.value


class _Connection(psycopg.Connection[Row]):
    """A connection whose statements have a limit of time."""

    seconds = 5.0

    def wait(self, gen: PQGen[Any], *_: Any, **__: Any) -> Any:
        return waiting.wait(_bounded(gen, self.seconds), self.pgconn.socket, _TICK)


class _AsyncConnection(psycopg.AsyncConnection[Row]):
    """The same for coroutines."""

    seconds = 5.0

    async def wait(self, gen: PQGen[Any], *_: Any, **__: Any) -> Any:
        return await waiting.wait_async(_bounded(gen, self.seconds), self.pgconn.socket, _TICK)


def _failure(error: psycopg.Error) -> Exception:
    """Return what an error of psycopg means."""
    state = error.sqlstate
    message = error.diag.message_primary or str(error)
    if state is None and isinstance(error, psycopg.DataError):
        return ValueError(message)
    if state is None or state.startswith("57P"):  # the server closes the connection
        return Broken(message)
    return SqlRefusal(state, message)


C = TypeVar("C", bound=psycopg.Connection[Any] | psycopg.AsyncConnection[Any])


class _PostgresLane(ServerLane, Generic[C]):
    """What both kinds have in common.

    Args:
        conninfo: libpq's connection string.
        seconds: for one statement.
    """

    _connection: C | None = None
    _cursor: Any = None
    _is_own = False  # whether the session is this connection's own, and no pooler's

    def __init__(self, conninfo: str, seconds: float) -> None:
        self._conninfo, self._seconds = conninfo, seconds
        self._process = os.getpid()

    def _take(self, connection: C, cursor: Any) -> None:
        self._connection, self._cursor = connection, cursor
        connection.seconds = self._seconds  # type: ignore[union-attr]  # of the classes above
        cursor.adapters.register_loader("timestamptz", _Seconds)
        self._reading: Poller = poller()
        self._reading.register(connection.pgconn.socket, READ)

    @property
    def is_alive(self) -> bool:
        if self._connection is None or not self.is_ready:
            return False
        wire = self._connection.pgconn
        try:
            if self._reading.poll(0):  # it was closed, or a notice waits
                wire.consume_input()
                return not wire.is_busy() and not self._reading.poll(0)
        except psycopg.Error:
            return False
        return True

    def close(self, *, friendly: bool = False) -> None:
        del friendly  # libpq always says a word
        if self._connection is not None and os.getpid() == self._process:
            self._connection.pgconn.finish()

    def __del__(self) -> None:
        self.close()


class PostgresLane(_PostgresLane[_Connection]):
    """A lane for threads."""

    def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement, and return its rows."""
        given = sent(values)
        try:
            if not self.is_ready:
                self.close()
                connection = _Connection.connect(self._conninfo, autocommit=True)
                self._take(connection, psycopg.RawCursor(connection, row_factory=tuple_row))
                ((pid,),) = self._cursor.execute(_PID).fetchall()
                self._is_own = pid == connection.info.backend_pid
                if self._is_own:
                    self._cursor.execute(_SETTINGS)
                self.is_ready = True
            cursor = self._cursor.execute(text, given, prepare=self._is_own, binary=True)
            return cursor.fetchall() if cursor.pgresult.nfields else ()
        except psycopg.Error as error:
            raise _failure(error) from error


class AsyncPostgresLane(_PostgresLane[_AsyncConnection]):
    """A lane for the coroutines of one event loop."""

    async def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        """Run one statement, and return its rows."""
        given = sent(values)
        try:
            if not self.is_ready:
                self.close()
                connection = await _AsyncConnection.connect(self._conninfo, autocommit=True)
                self._take(connection, psycopg.AsyncRawCursor(connection, row_factory=tuple_row))
                ((pid,),) = await (await self._cursor.execute(_PID)).fetchall()
                self._is_own = pid == connection.info.backend_pid
                if self._is_own:
                    await self._cursor.execute(_SETTINGS)
                self.is_ready = True
            cursor = await self._cursor.execute(text, given, prepare=self._is_own, binary=True)
            return await cursor.fetchall() if cursor.pgresult.nfields else ()
        except psycopg.Error as error:
            raise _failure(error) from error


class PostgresLanes(LedgerLanes[_PostgresLane[Any]]):
    """The lanes to one database.

    Args:
        conninfo: libpq's connection string.
        most: lanes, for all threads together and for each event loop.
        timeout: seconds for one statement, for making a connection, and for waiting until one is free.
    """

    def __init__(self, conninfo: str, most: int, timeout: float) -> None:
        options = _OPTIONS | {"connect_timeout": str(max(2, round(timeout)))} | conninfo_to_dict(conninfo)
        self._conninfo = place = make_conninfo("", **options | {"client_encoding": "UTF8"})
        self.timeout = timeout
        self.ear: Ear | None = Ear(place, timeout)
        make, make_async = lambda: PostgresLane(place, timeout), lambda: AsyncPostgresLane(place, timeout)
        super().__init__(make, make_async, most, timeout, LEFT)

    def close(self) -> None:
        """Close the idle lanes, and stop listening."""
        if self.ear is not None:
            self.ear.close()
        super().close()

    def patient(self, seconds: float) -> "PostgresLanes":
        """Return one lane of its own, with another limit of time for a statement."""
        return PostgresLanes(self._conninfo, 1, seconds)
