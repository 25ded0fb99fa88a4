"""A lane to PostgreSQL: a connection of psycopg, on which the statements are prepared.

A connection that was interrupted, cancelled or too slow in the middle of a statement is closed at once.
"""

from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from onceward.stores.lanes import LedgerLanes
from onceward.stores.lanes.lane import SocketLane
from onceward.stores.postgres.cursors import (
    LEAVE_ON,
    AsyncConnection,
    Connection,
    as_texts,
    cursor_of,
    failure,
    fetch,
    fetch_async,
    is_alive,
)
from onceward.stores.postgres.listening import Ear
from onceward.stores.sql.exchange import Row

# libpq's options; those of the user go before. Keepalives find a peer that vanished while nothing was sent.
_OPTIONS: Final = {"keepalives_idle": "30", "fallback_application_name": "onceward"}
# The plan that the tables need when they are large, whatever their size when a statement is prepared; and an end of what waits for a
# locked table after its client has gone, or it would keep its place on the server. No row: the session is a pooler's, and not this
# connection's own.
_SETTINGS: Final = (
    "SELECT set_config('enable_seqscan', 'off', false), set_config('jit', 'off', false), set_config('lock_timeout', $2::text, false), "
    "set_config('plan_cache_mode', 'force_generic_plan', false) WHERE pg_backend_pid()::text = $1::text"
)


class PostgresLane(SocketLane):
    """A lane for threads."""

    _cursor: Any = None
    _is_own = False  # whether the session is this connection's own, so that its statements can be prepared

    def __init__(self, conninfo: str, seconds: float) -> None:
        super().__init__()
        self._conninfo, self._seconds = conninfo, seconds

    def _take(self, connection: Any) -> list[str]:
        """Keep a new connection, and return the parameters of its settings."""
        self._cursor = cursor_of(self._hold(connection))
        connection.seconds = self._seconds
        return [str(connection.info.backend_pid), str(round(1000 * self._seconds + 1000))]

    @property
    def is_alive(self) -> bool:
        return self.is_ready and self._wire is not None and is_alive(self._wire)

    @staticmethod
    def _close(wire: Any, _: bool) -> None:
        wire.pgconn.finish()  # libpq always says a word

    def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:
        parameters = as_texts(values)
        try:
            if not self.is_ready:
                self.close()
                own = self._take(Connection.connect(self._conninfo, autocommit=True))
                self._is_own = bool(fetch(self._cursor, _SETTINGS, own, prepare=False))
                self.is_ready = True
            return fetch(self._cursor, text, parameters, prepare=self._is_own)
        except (psycopg.Error, OSError) as error:
            raise failure(error) from error


class AsyncPostgresLane(PostgresLane):
    """A lane for the coroutines of one event loop."""

    async def fetch(self, text: str, values: Sequence[object]) -> Sequence[Row]:  # type: ignore[override]
        parameters = as_texts(values)
        try:
            if not self.is_ready:
                self.close()
                own = self._take(await AsyncConnection.connect(self._conninfo, autocommit=True))
                self._is_own = bool(await fetch_async(self._cursor, _SETTINGS, own, prepare=False))
                self.is_ready = True
            return await fetch_async(self._cursor, text, parameters, prepare=self._is_own)
        except (psycopg.Error, OSError) as error:
            raise failure(error) from error


class PostgresLanes(LedgerLanes):
    """The lanes to one database."""

    def __init__(self, conninfo: str, most: int, timeout: float) -> None:
        options = _OPTIONS | {"connect_timeout": str(max(2, round(timeout)))} | conninfo_to_dict(conninfo)
        place = make_conninfo("", **options | {"client_encoding": "UTF8"})
        self.timeout = timeout
        self.ear = Ear(place, timeout)
        make, make_async = lambda: PostgresLane(place, timeout), lambda: AsyncPostgresLane(place, timeout)
        super().__init__(make, make_async, most, timeout, LEAVE_ON)

    def close(self) -> None:
        self.ear.close()
        super().close()
