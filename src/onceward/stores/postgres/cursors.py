"""psycopg's connections and cursors, as a ledger uses them.

psycopg sets no limit of time to a server that does not answer, so ``wait`` does it here for connections of our own.
"""

from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg import waiting
from psycopg.abc import PQGen
from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.rows import tuple_row

from onceward.core.clock import boottime
from onceward.stores.sql.queries import Row
from onceward.stores.sql.refusals import Broken, SqlRefusal

_TICK: Final = 0.1  # seconds between two looks at the time


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


class Connection(psycopg.Connection[Row]):
    """A connection whose statements have a limit of time."""

    seconds = 5.0

    def wait(self, gen: PQGen[Any], *_: Any, **__: Any) -> Any:
        """Run psycopg's steps."""
        return waiting.wait(_bounded(gen, self.seconds), self.pgconn.socket, _TICK)


class AsyncConnection(psycopg.AsyncConnection[Row]):
    """The same for coroutines."""

    seconds = 5.0

    async def wait(self, gen: PQGen[Any], *_: Any, **__: Any) -> Any:
        """Run psycopg's steps."""
        return await waiting.wait_async(_bounded(gen, self.seconds), self.pgconn.socket, _TICK)


def cursor_of(connection: Any) -> Any:
    """Return a cursor whose rows are ours, whatever the connection's owner has set."""
    kind = psycopg.AsyncRawCursor if isinstance(connection, psycopg.AsyncConnection) else psycopg.RawCursor
    cursor: Any = kind(connection, row_factory=tuple_row)
    cursor.adapters.register_loader("timestamptz", _Seconds)
    return cursor


def fetch(cursor: Any, text: str, given: Sequence[str | None], *, prepare: bool) -> Sequence[Row]:
    """Run one statement, and return its rows. Raises psycopg's errors."""
    cursor.execute(text, given, prepare=prepare, binary=True)
    return cursor.fetchall() if cursor.pgresult.nfields else ()


async def fetch_async(cursor: Any, text: str, given: Sequence[str | None], *, prepare: bool) -> Sequence[Row]:
    """As :func:`fetch`, for a coroutine."""
    await cursor.execute(text, given, prepare=prepare, binary=True)
    return await cursor.fetchall() if cursor.pgresult.nfields else ()


def failure(error: psycopg.Error) -> Exception:
    """Return what an error of psycopg means."""
    state = error.sqlstate
    message = error.diag.message_primary or str(error)
    if state is None and isinstance(error, psycopg.DataError):
        return ValueError(message)
    if state is None or state.startswith("57P"):  # the server closes the connection
        return Broken(message)
    return SqlRefusal(state, message)


def is_alive(connection: Any) -> bool:
    """Return whether an idle connection is still open, as far as this end knows. Sends nothing."""
    try:
        for _ in ("the server's last word", "the end"):
            connection.pgconn.consume_input()
        return not connection.pgconn.is_busy()
    except psycopg.Error:
        return False
