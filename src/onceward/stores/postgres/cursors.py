"""psycopg's connections and cursors, as a ledger uses them; the values that it sends; and PostgreSQL's errors and their fixes.

The errors are by SQLSTATE (postgresql.org/docs/current/errcodes-appendix.html).

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
from onceward.stores.lanes.refusals import Broken, ServerErrors, SqlRefusal
from onceward.stores.sql.exchange import Row

LOCKED: Final = "55P03"  # lock_not_available
CANCELED: Final = "57014"  # query_canceled: by statement_timeout, which can be shorter than a wait of ours
# A prepared statement that is gone (a pooler between has reset the session), whose table was altered, or whose name an interrupted
# request has used: all before it ran.
_STALE: Final = frozenset({"26000", "0A000", "42P05"})
ANEW: Final = (
    frozenset({"40001", "40P01"}) | _STALE
)  # serialization_failure, deadlock_detected: the statement starts anew
# A lane is left: its statements are stale, or its server, or session, takes no writes now.
LEAVE_ON: Final = _STALE | {"25006"}
NO_TABLE: Final = frozenset({"42P01", "3F000"})  # undefined_table, invalid_schema_name
DENIED: Final = "42501"

_FIXES: Final = {
    DENIED: "grant this role SELECT, INSERT, UPDATE and DELETE on the table and on its _meta table (docs/reference/postgres.md)",
    "42P01": "there is no such table: make it with `onceward init --store '{url}'`, or check table= and schema=",
    "3F000": "there is no such schema: make it with `onceward init --store '{url}'`, or check schema=",
    "42703": "the table lacks a column: run `onceward migrate --store '{url}'`",
    "25006": "this server is a standby or read-only: give the address of the primary, or target_session_attrs=read-write",
    "54000": "a value is too long for an index",
    "28P01": "check the user and the password",
    "28000": "check the user, and the server's pg_hba.conf",
    "3D000": "there is no such database: check the URL",
    "53100": "the server's disk is full",
}
# Classes after which the same request may succeed: connection, rollback, resources, the operator's intervention, system.
# 25006 is a standby: a failover ends it.
FAULTS: Final = ServerErrors(
    "PostgreSQL", LOCKED, ANEW, transient=frozenset({"08", "40", "53", "57", "58", "25006"}), fixes=_FIXES
)
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
        return waiting.wait(_bounded(gen, self.seconds), self.pgconn.socket, _TICK)


class AsyncConnection(psycopg.AsyncConnection[Row]):
    """The same for coroutines."""

    seconds = 5.0

    async def wait(self, gen: PQGen[Any], *_: Any, **__: Any) -> Any:
        return await waiting.wait_async(_bounded(gen, self.seconds), self.pgconn.socket, _TICK)


def cursor_of(connection: Any) -> Any:
    """Return a cursor whose rows are ours, whatever the connection's owner has set."""
    kind = psycopg.AsyncRawCursor if isinstance(connection, psycopg.AsyncConnection) else psycopg.RawCursor
    cursor: Any = kind(connection, row_factory=tuple_row)
    cursor.adapters.register_loader("timestamptz", _Seconds)
    return cursor


def fetch(cursor: Any, text: str, parameters: Sequence[str | None], *, prepare: bool) -> Sequence[Row]:
    """Run one statement, and return its rows. Raises psycopg's errors."""
    cursor.execute(text, parameters, prepare=prepare, binary=True)
    return cursor.fetchall() if cursor.pgresult.nfields else ()


async def fetch_async(cursor: Any, text: str, parameters: Sequence[str | None], *, prepare: bool) -> Sequence[Row]:
    """As :func:`fetch`, for a coroutine."""
    await cursor.execute(text, parameters, prepare=prepare, binary=True)
    return await cursor.fetchall() if cursor.pgresult.nfields else ()


def failure(error: psycopg.Error | OSError) -> Exception:
    """Return what an error of psycopg means, or of the system while it connects."""
    if isinstance(error, OSError):
        if not error.errno:
            raise error  # by a signal handler
        return Broken(str(error))
    state = error.sqlstate
    message = error.diag.message_primary or str(error)
    if state is None and isinstance(error, psycopg.DataError):
        return ValueError(message)
    if state is None or error.diag.severity_nonlocalized in {"FATAL", "PANIC"}:  # the server closes the connection
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


# Lists are written by columns. In a batch most columns have one value only, and the others one type: whole columns cost a third of
# what single values do.


def as_texts(values: Sequence[Any]) -> list[str | None]:
    """Return a statement's values as texts. The statement says their types, so that it is prepared once."""
    return [
        value
        if value is None or type(value) is str
        else f"{{{_elements(value)}}}"
        if type(value) is list
        else repr(value)
        for value in values
    ]


def _elements(values: list[Any]) -> str:
    first, count = values[0], len(values)
    if values.count(first) == count:  # NULLs only: unnest makes an array as long as the others
        return "" if first is None else ",".join([_element(first)] * count)
    if None in values:
        return ",".join(map(_element, values))
    if type(first) is not str:
        return repr(values)[1:-1]
    text = "\0".join(values)
    if text.count("\0") != count - 1:
        raise ValueError("PostgreSQL cannot store a NUL in a text")
    return '"' + _escaped(text).replace("\0", '","') + '"'


def _element(value: object) -> str:
    if value is None:
        return "NULL"
    return f'"{_escaped(value)}"' if type(value) is str else repr(value)


def _escaped(text: str) -> str:
    if '"' in text or "\\" in text:
        return text.replace("\\", "\\\\").replace('"', '\\"')
    return text
