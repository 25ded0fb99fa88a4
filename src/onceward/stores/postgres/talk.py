"""OneRow statement over libpq: a generator yields what it waits for, and a driver waits, blocking or on an event loop.

psycopg's cursors are not used: they have no limit of time for a server that does not answer, and cost twice the CPU.
A driver that gives up leaves the connection in the middle of a statement: close it then.
"""

import asyncio
import os
from collections.abc import Generator, Sequence
from typing import Final

from psycopg import errors
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from onceward.core.clock import boottime
from onceward.stores.postgres.values import rows_of, written_as
from onceward.stores.sql.polling import READ, WRITE, Poller, poller
from onceward.stores.sql.queries import Row
from onceward.stores.sql.refusals import Broken, SqlRefusal

Talk = Generator[int, None, list[Row]]  # yields READ or WRITE
_FAILED: Final = ExecStatus.FATAL_ERROR
_ROWS: Final = ExecStatus.TUPLES_OK


def talk(connection: PGconn, statement: bytes, values: Sequence[object]) -> Talk:
    """Send one statement and return its rows.

    Raises:
        SqlRefusal: PostgreSQL refused it; the connection is ready for the next.
        Broken: the connection was lost.
        ValueError: a text has a NUL, which PostgreSQL cannot keep, or is not Unicode.
    """
    sent = [None if value is None else written_as(value) for value in values]
    try:
        connection.send_query_params(statement, sent, result_format=1)
        while connection.flush():
            yield WRITE
        result: PGresult | None = None
        while True:
            while connection.is_busy():
                yield READ
                connection.consume_input()
            more = connection.get_result()
            if more is None:
                break
            result = more
    except errors.OperationalError as error:
        raise Broken(str(error)) from error
    assert result is not None
    if result.status == _FAILED:
        state = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
        message = (result.error_field(DiagnosticField.MESSAGE_PRIMARY) or result.error_message).decode(errors="replace")
        if not state or state.startswith("57P"):  # the server closes the connection
            raise Broken(message)
        raise SqlRefusal(state, message)
    return rows_of(result) if result.status == _ROWS else []


def drive(connection: PGconn, steps: Talk, seconds: float, reading: Poller | None = None) -> list[Row]:
    """Run a talk, blocking, for at most this many seconds. ``reading`` is a poll of the connection's, for its answers."""
    process = os.getpid()
    try:
        event = next(steps)
        end = boottime() + seconds
        waiting = reading if reading is not None and event == READ else poll_for(connection, event)
        while True:
            left = end - boottime()
            ready = waiting.poll(max(0.0, left) * 1000)
            if os.getpid() != process:  # a signal handler forked
                raise Broken(
                    "this process was forked in the middle of a statement of its parent, whose connection it is"
                )
            if not ready:
                raise Broken(f"the server has not answered for {seconds:g} s")
            wanted = next(steps)
            if wanted != event:
                waiting, event = poll_for(connection, wanted), wanted
    except StopIteration as ended:
        rows: list[Row] = ended.value
        return rows


async def drive_async(connection: PGconn, steps: Talk, seconds: float) -> list[Row]:
    """As :func:`drive`, on the running event loop."""
    try:
        event = next(steps)
        loop, end = asyncio.get_running_loop(), boottime() + seconds
        while True:
            if not await _ready(loop, connection.socket, event, max(0.0, end - boottime())):
                raise Broken(f"the server has not answered for {seconds:g} s")
            event = next(steps)
    except StopIteration as ended:
        rows: list[Row] = ended.value
        return rows


async def _ready(loop: asyncio.AbstractEventLoop, socket: int, event: int, seconds: float) -> bool:
    """Wait until the socket is ready; return False if that takes too long."""
    ready: asyncio.Future[bool] = loop.create_future()
    add, remove = (loop.add_reader, loop.remove_reader) if event == READ else (loop.add_writer, loop.remove_writer)
    add(socket, _tell, ready, True)
    timer = loop.call_later(seconds, _tell, ready, False)
    try:
        return await ready
    finally:
        timer.cancel()
        remove(socket)


def _tell(future: "asyncio.Future[bool]", value: bool) -> None:
    if not future.done():
        future.set_result(value)


def poll_for(connection: PGconn, event: int) -> Poller:
    """Return a poll of a connection."""
    made = poller()
    made.register(connection.socket, event)
    return made


def is_alive(connection: PGconn, reading: Poller | None = None) -> bool:
    """Return whether an idle connection is still open, as far as this end knows. Sends nothing."""
    try:
        waiting = reading or poll_for(connection, READ)
        if waiting.poll(0):  # it was closed, or a notice waits
            connection.consume_input()
            return not connection.is_busy() and not waiting.poll(0)
    except errors.OperationalError:
        return False
    return True
