"""Connections of PyMySQL for threads, and of asyncmy for coroutines: the lanes to MySQL, statements on one, its transaction, its end, and the servers' errors and their fixes.

The errors of MySQL and MariaDB are by number (mariadb.com/kb/en/mariadb-error-codes).
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import pymysql
from pymysql.cursors import Cursor

from onceward.stores.capabilities import TransactionState
from onceward.stores.lanes import LedgerLanes
from onceward.stores.lanes import lane as lanes
from onceward.stores.lanes.limits import shut, transport_of
from onceward.stores.lanes.refusals import Broken, ServerErrors, SqlRefusal
from onceward.stores.mysql.schema import flavor_of
from onceward.stores.sql.exchange import Row

LOCKED: Final = "1205"  # a lock wait timeout: the statement was rolled back, the transaction was not
# A deadlock: the transaction was rolled back. MariaDB's innodb_snapshot_isolation: the row has changed since the snapshot.
ANEW: Final = frozenset({"1213", "1020"})
NO_TABLE: Final = "1146"
NO_SAVEPOINT: Final = "1305"
THERE: Final = frozenset({"1060", "1061"})  # the column or the index that was to be added
DENIED: Final = frozenset({"1044", "1045", "1142", "1143", "1227", "1370", "1698"})
LEAVE_ON: Final = frozenset({"1047", "1290", "1836"})  # it takes no writes now: another server may have its address
LOST: Final = frozenset(
    {"0", "1053", "1152", "1158", "1159", "1160", "1161", "1927", "2006", "2013", "2014", "2055", "4031"}
)

_GRANT: Final = (
    "grant this user SELECT, INSERT, UPDATE and DELETE on the table and its _meta table (docs/reference/mysql.md)"
)
_FIXES: Final = {
    **dict.fromkeys(DENIED, _GRANT),
    "1045": "check the user and the password",
    "1698": "check the user and the password",
    "1146": "there is no such table: make it with `onceward init --store '{url}'`, or check table=",
    "1049": "there is no such database: CREATE DATABASE it, or check the URL",
    "1054": "the table lacks a column: run `onceward migrate --store '{url}'`",
    "1021": "the server's disk is full",
    "1114": "the server's disk or tablespace is full",
    "1153": "raise max_allowed_packet on the server, or lower max_result",
    "1040": "raise max_connections on the server, or lower lanes=",
    "1226": "raise the limits of this account on the server, or lower lanes=",
    "1665": "set binlog_format to ROW or MIXED on the server",
    "1242": "SET timestamp, SET NAMES or SET sql_mode was run on the connection: leave these settings as they were",
    "1290": "this server is a replica or read-only: give the address of the primary",
    "1836": "this server is a replica or read-only: give the address of the primary",
}
# After which the same request may succeed: resources, the operator's intervention, a failover, Galera.
_TRANSIENT: Final = frozenset(
    {
        LOCKED,
        *ANEW,
        *LOST,
        "1021",
        "1040",
        "1047",
        "1114",
        "1180",
        "1203",
        "1226",
        "1290",
        "1317",
        "1836",
        "1969",
        "2002",
        "2003",
        "3024",
    }
)
FAULTS: Final = ServerErrors("the server", LOCKED, ANEW, _TRANSIENT, _FIXES)
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
    """Run statements one after another, and return the rows of all. Raises the driver's errors.

    An interrupt in the middle of one closes the connection. After an error, the driver does so if the stream is in disorder.
    """
    rows: list[Row] = []
    try:
        with connection.cursor(Cursor) as cursor:  # the connection can have another class of its own
            for text in texts:
                cursor.execute(text)
                rows += cursor.fetchall()
                while cursor.nextset():
                    rows += cursor.fetchall()
    except BaseException as error:
        _cut_after(error, connection)
        raise
    return rows


async def fetch_async(connection: Any, texts: Sequence[str]) -> list[Row]:
    """As :func:`fetch`, for a connection of asyncmy."""
    rows: list[Row] = []
    try:
        for text in texts:
            await connection.query(text)
            while True:
                result = connection._result  # noqa: SLF001 - its cursor would ask for warnings, and warn of each
                rows += result.rows or ()
                if not result.has_next:
                    break
                await connection.next_result()
    except BaseException as error:
        _cut_after(error, connection)
        raise
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


def _cut_after(error: BaseException, driver: Any) -> None:
    if not isinstance(error, Exception):
        cut(driver)


def drop(wire: Any) -> None:
    """Close a connection of asyncmy, from any thread, also if its loop is closed."""
    if (transport := transport_of(wire)) is not None:
        lanes.drop(transport, wire.loop, wire.close)


class MysqlLane(lanes.WatchedLane):
    """A lane for threads."""

    def __init__(self, place: Mapping[str, Any], seconds: float) -> None:
        super().__init__()
        self._place, self._seconds = place, seconds

    def fetch(self, texts: Sequence[str]) -> list[Row]:
        try:
            if not self.is_ready:
                self.close()
                wire = pymysql.connect(**self._place, read_timeout=self._seconds, write_timeout=self._seconds)
                fetch(self._hold(wire), [settings(wire.get_server_info())])
                self._open()
            return fetch(self._wire, texts)
        except Exception as error:
            raise spoken_error(error) or error from error

    @staticmethod
    def _close(wire: Any, friendly: bool) -> None:
        if not friendly:
            shut(wire)
        wire.close()


class AsyncMysqlLane(MysqlLane):
    """A lane for the coroutines of one event loop."""

    async def fetch(self, texts: Sequence[str]) -> list[Row]:  # type: ignore[override]
        try:
            async with asyncio.timeout(self._seconds):
                if not self.is_ready:
                    self.close()
                    import asyncmy  # only coroutines need it

                    wire = self._hold(await asyncmy.connect(**self._place))
                    await fetch_async(wire, [settings(wire.get_server_info())])
                    self._open()
                return await fetch_async(self._wire, texts)
        except TimeoutError as error:
            raise Broken(f"the server has not answered for {self._seconds:g} s") from error
        except Exception as error:
            raise spoken_error(error) or error from error

    @staticmethod
    def _close(wire: Any, _: bool) -> None:
        drop(wire)


class MysqlLanes(LedgerLanes):
    """The lanes to one database."""

    def __init__(self, place: Mapping[str, Any], most: int, timeout: float) -> None:
        whole = {"connect_timeout": max(1, round(timeout)), **place, "charset": "utf8mb4", "autocommit": True}
        self._place, self.timeout = whole, timeout
        lane, lane_async = partial(MysqlLane, whole, timeout), partial(AsyncMysqlLane, whole, timeout)
        super().__init__(lane, lane_async, most, timeout, LEAVE_ON)
