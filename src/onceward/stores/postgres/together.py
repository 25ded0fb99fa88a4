"""Statements on the caller's psycopg connection: BEGIN is sent with the first of them, and COMMIT with the last.

``connection.wait`` of psycopg drives the generators here, so an interrupt or a cancellation is psycopg's own business.
They cost a third of the CPU of its cursors and its ``pipeline()``.
"""

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

from psycopg import Capabilities, Connection, IsolationLevel, errors
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

from onceward.core.clock import boottime
from onceward.errors import StoreError
from onceward.stores.postgres.inside import Asked
from onceward.stores.postgres.values import rows_of, written_as
from onceward.stores.sql.queries import Row
from onceward.stores.sql.refusals import Broken

_Told = Generator[Wait, Ready | int, list[PGresult]]
_COMMIT: Final[Asked] = ("COMMIT", ())
_ROLLBACK: Final[Asked] = ("ROLLBACK", ())
_PIPELINES: Final = Capabilities().has_pipeline()  # libpq 14 or newer


def fetch(connection: "Connection[Any]", text: str, values: Sequence[object], seconds: float) -> list[Row]:
    """Run one statement and return its rows. Begin a transaction with it, unless one is open."""
    with connection.lock:
        return _rows(connection, connection.wait(_told(connection, [*_begin(connection), (text, values)], seconds)))


async def fetch_async(connection: Any, text: str, values: Sequence[object], seconds: float) -> list[Row]:
    """As :func:`fetch`, for a coroutine."""
    async with connection.lock:
        told = await connection.wait(_told(connection, [*_begin(connection), (text, values)], seconds))
        return _rows(connection, told)


def finish(connection: "Connection[Any]", seconds: float) -> None:
    """Commit."""
    with connection.lock:
        _check_commit(connection, connection.wait(_told(connection, [_COMMIT], seconds)))


async def finish_async(connection: Any, seconds: float) -> None:
    """As :func:`finish`, for a coroutine."""
    async with connection.lock:
        _check_commit(connection, await connection.wait(_told(connection, [_COMMIT], seconds)))


def roll_back(connection: "Connection[Any]", seconds: float) -> None:
    """Roll back, if a transaction is open. A connection that does not answer is closed."""
    with connection.lock, contextlib.suppress(Broken):
        connection.wait(_told(connection, [_ROLLBACK], seconds))


async def roll_back_async(connection: Any, seconds: float) -> None:
    """As :func:`roll_back`, for a coroutine."""
    async with connection.lock:
        with contextlib.suppress(Broken):
            await connection.wait(_told(connection, [_ROLLBACK], seconds))


def complete(connection: "Connection[Any]", text: str, values: Sequence[object], seconds: float) -> list[Row]:
    """Complete the record by a statement, and commit. Return the statement's rows.

    If the statement fails, nothing is committed.
    """
    with connection.lock:
        return _completed(connection, connection.wait(_told(connection, [(text, values), _COMMIT], seconds)))


async def complete_async(connection: Any, text: str, values: Sequence[object], seconds: float) -> list[Row]:
    """As :func:`complete`, for a coroutine."""
    async with connection.lock:
        return _completed(connection, await connection.wait(_told(connection, [(text, values), _COMMIT], seconds)))


def complete_within(
    connection: Any, text: str, values: Sequence[object], act: Callable[[], None], seconds: float
) -> list[Row]:
    """Complete the record when ``act()``, of another library, calls the connection's ``commit()``. Return the statement's rows.

    Call :func:`forget` after an interrupt.
    """
    rows: list[Row] = []

    def commit() -> None:
        rows.extend(complete(connection, text, values, seconds))

    async def commit_async() -> None:
        rows.extend(await complete_async(connection, text, values, seconds))

    try:
        connection.commit = commit if isinstance(connection, Connection) else commit_async
        act()
    finally:
        forget(connection)
    if not rows:
        raise StoreError("the library of the connection has not committed")
    return rows


def forget(connection: Any) -> None:
    """Let a connection's ``commit()`` be its own again."""
    connection.__dict__.pop("commit", None)


def _begin(connection: Any) -> list[Asked]:
    """Return the BEGIN that psycopg would send, if no transaction is open."""
    if connection.pgconn.transaction_status != TransactionStatus.IDLE:
        return []
    parts = ["BEGIN"]
    if connection.isolation_level is not None:
        parts.append(f"ISOLATION LEVEL {IsolationLevel(connection.isolation_level).name.replace('_', ' ')}")
    if connection.read_only is not None:
        parts.append("READ ONLY" if connection.read_only else "READ WRITE")
    if connection.deferrable is not None:
        parts.append("DEFERRABLE" if connection.deferrable else "NOT DEFERRABLE")
    return [(" ".join(parts), ())]


def _rows(connection: Any, told: list[PGresult]) -> list[Row]:
    """Return the rows of the last statement, or raise the error of the first that failed."""
    for result in told:
        if result.status == ExecStatus.FATAL_ERROR:
            raise errors.error_from_result(result, encoding=connection.info.encoding)
    return rows_of(told[-1]) if told[-1].status == ExecStatus.TUPLES_OK else []


def _completed(connection: Any, told: list[PGresult]) -> list[Row]:
    rows = _rows(connection, told[:1])
    _check_commit(connection, told[1:])
    return rows


def _check_commit(connection: Any, told: list[PGresult]) -> None:
    _rows(connection, told)
    if told[0].command_status != b"COMMIT":
        raise StoreError("PostgreSQL rolled the transaction back at its COMMIT")


def _told(connection: Any, asked: Sequence[Asked], seconds: float) -> _Told:
    """Send the statements, in one message if libpq can, and return their results.

    Raises:
        Broken: they are not there within so many seconds; then the connection is closed.
    """
    wire: PGconn = connection.pgconn
    end = boottime() + seconds
    written = [(text.encode(), [None if one is None else written_as(one) for one in values]) for text, values in asked]
    results: list[PGresult] = []
    if len(written) == 1 or not _PIPELINES:
        for text, values in written:
            wire.send_query_params(text, values, result_format=1)
            results += yield from _answers(wire, None, end)
            if results[-1].status == ExecStatus.FATAL_ERROR:
                break
        return results
    new: dict[int, tuple[bytes, bytes]] = {}  # statements that are prepared now, by the number of their result
    wire.enter_pipeline_mode()
    for text, values in written:
        name, is_new = _prepared(connection, text) if values else (None, False)
        if name is None:
            wire.send_query_params(text, values, result_format=1)
            continue
        if is_new:
            new[written.index((text, values)) + len(new)] = text, name
            wire.send_prepare(name, text)
        wire.send_query_prepared(name, values, result_format=1)
    wire.pipeline_sync()
    results = yield from _answers(wire, ExecStatus.PIPELINE_SYNC, end)
    wire.exit_pipeline_mode()
    for at in sorted(new, reverse=True):
        if results[at].status == ExecStatus.COMMAND_OK:
            text, name = new[at]
            connection._prepared._names[text, ()] = name  # noqa: SLF001 - see below
            del results[at]
    return results


def _prepared(connection: Any, text: bytes) -> tuple[bytes | None, bool]:
    """Return the name of the statement if it is to be prepared, and whether it is not yet, as psycopg decides for its own.

    psycopg's list is used, because psycopg knows when the server has forgotten all of them, as after a rollback.
    """
    known = getattr(connection, "_prepared", None)
    names, counts = getattr(known, "_names", None), getattr(known, "_counts", None)
    if connection.prepare_threshold is None or known is None or names is None or counts is None:
        return None, False
    if (name := names.get((text, ()))) is not None:
        return name, False
    if (count := counts.get((text, ()), 0)) < connection.prepare_threshold:
        counts[text, ()] = count + 1
        return None, False
    known._prepared_idx += 1  # noqa: SLF001 - as above
    return f"_pg3_onceward_{known._prepared_idx}".encode(), True  # noqa: SLF001 - as above


def _answers(wire: PGconn, last: ExecStatus | None, end: float) -> _Told:
    """Return the results up to the one with the status ``last``; None: up to the end of a statement."""
    while wire.flush():
        ready = yield Wait.RW
        if ready & Ready.R:
            wire.consume_input()
        elif not ready:  # psycopg asks now and then
            _check_time(wire, end)
    results: list[PGresult] = []
    while True:
        while wire.is_busy():
            if (yield Wait.R):
                wire.consume_input()
            else:
                _check_time(wire, end)
        result = wire.get_result()
        if (result and result.status) == last:
            return results
        if result is not None:
            results.append(result)
        elif wire.status == ConnStatus.BAD:
            raise Broken("the connection was lost")


def _check_time(wire: PGconn, end: float) -> None:
    if boottime() >= end:
        wire.finish()
        raise Broken("the server has not answered in time")
