"""Connections of PyMySQL and asyncmy: statements on one, its transaction, its end, and what its errors mean."""

from collections.abc import Sequence
from typing import Any, Final

import pymysql
from pymysql.cursors import Cursor

from onceward.stores.capabilities import TransactionState
from onceward.stores.lanes import sockets
from onceward.stores.mysql.faults import LOST
from onceward.stores.mysql.schema import flavor_of
from onceward.stores.sql.limits import shut, transport_of
from onceward.stores.sql.queries import Row
from onceward.stores.sql.refusals import Broken, SqlRefusal

DRIVERS: Final = frozenset({"pymysql", "asyncmy", "MySQLdb"})
IN_TRANSACTION: Final = 1  # in the status that the server tells with each answer


def settings(server: str) -> str:
    """Return what makes a session the ledger's own: strict, with || for texts, the server's time, and never waiting long for a row.

    A server's ``init_connect`` can switch autocommit off and set another charset, and the driver does not see it. A collation of
    that charset stays: a connection of the caller's compares its own texts by it.

    Args:
        server: what the server says of its version.
    """
    flavor = flavor_of(server)
    level = "tx_isolation" if flavor.mariadb and flavor.version < (11, 1) else "transaction_isolation"
    return (
        "SET SESSION sql_mode = 'STRICT_ALL_TABLES,PIPES_AS_CONCAT,NO_ENGINE_SUBSTITUTION', innodb_lock_wait_timeout = 1, "
        f"timestamp = DEFAULT, autocommit = 1, {level} = 'READ-COMMITTED', "
        "character_set_client = utf8mb4, character_set_results = utf8mb4, collation_connection = "
        "IF(@@character_set_connection = 'utf8mb4', @@collation_connection, 'utf8mb4_general_ci')"
    )


def fetch(connection: Any, texts: Sequence[str]) -> list[Row]:
    """Run statements one after another, and return the rows of all. Raises the driver's errors."""
    rows: list[Row] = []
    with connection.cursor(Cursor) as cursor:  # the connection can have another class of its own
        for text in texts:
            cursor.execute(text)
            rows += cursor.fetchall()
            while cursor.nextset():
                rows += cursor.fetchall()
    return rows


async def fetch_async(connection: Any, texts: Sequence[str]) -> list[Row]:
    """As :func:`fetch`, for a connection of asyncmy."""
    rows: list[Row] = []
    for text in texts:
        await connection.query(text)
        while True:
            result = connection._result  # noqa: SLF001 - its cursor would ask for warnings, and warn of each
            rows += result.rows or ()
            if not result.has_next:
                break
            await connection.next_result()
    return rows


def code_of(error: BaseException | None) -> str:
    """Return the number of a driver's error, within those that other libraries wrap around it; "" if it has none."""
    while error is not None:
        number = error.args[0] if error.args else None
        if isinstance(number, int) and is_drivers(error):
            return str(number)
        error = getattr(error, "orig", None) or error.__cause__
    return ""


def is_drivers(error: BaseException) -> bool:
    """Return whether an error is of a driver."""
    return not DRIVERS.isdisjoint(kind.__module__.partition(".")[0] for kind in type(error).__mro__)


def spoken_error(error: BaseException) -> SqlRefusal | Broken | None:
    """Return what an error of a statement means; None if it is not the driver's.

    After a SqlRefusal, the connection can be used for the next statement.
    """
    if isinstance(error, OSError | TimeoutError):
        return Broken(str(error) or type(error).__name__)
    if not is_drivers(error):
        return None
    code = code_of(error)
    text = str(error.args[-1]) if error.args else type(error).__name__
    if code and code not in LOST and not code.startswith("2"):
        return SqlRefusal(code, text)
    return Broken(text or "the connection is closed")


def state_of(driver: Any) -> TransactionState:
    """Return the state of a connection, as the server told it with its last answer that was no error."""
    if driver is None or not is_open(driver):
        return TransactionState.LOST
    return TransactionState.OPEN if driver.server_status & IN_TRANSACTION else TransactionState.ENDED


def is_open(driver: Any) -> bool:
    """Return whether a connection is open, as far as this end knows."""
    if isinstance(driver, pymysql.Connection):
        return bool(driver.open)
    return bool(driver.connected) and not driver._stream_broken  # noqa: SLF001 - no public name


def cut(driver: Any) -> None:
    """Close a connection at once. The server then rolls back."""
    if not isinstance(driver, pymysql.Connection):
        if driver is not None:
            drop(driver)
    elif driver.open:
        shut(driver)  # else the driver would wait until a frozen server takes its farewell
        driver.close()


def run(driver: Any, texts: Sequence[str]) -> list[Row]:
    """Run statements on a blocking connection. It is closed if that ends in the middle of one."""
    try:
        return fetch(driver, texts)
    except Exception:  # the driver closes it if the stream is in disorder
        raise
    except BaseException:
        cut(driver)
        raise


async def run_async(driver: Any, texts: Sequence[str]) -> list[Row]:
    """As :func:`run`, for a connection of coroutines."""
    try:
        return await fetch_async(driver, texts)
    except Exception:
        raise
    except BaseException:
        cut(driver)
        raise


def drop(wire: Any) -> None:
    """Close a connection of asyncmy, from any thread, also if its loop is closed."""
    if (transport := transport_of(wire)) is not None:
        sockets.drop(transport, wire.loop, wire.close)
