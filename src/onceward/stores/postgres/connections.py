"""What a connection of any driver says: the state of its transaction, and the code of its error."""

import contextlib
from typing import Any, Final

from psycopg import Connection
from psycopg.pq import TransactionStatus

from onceward.stores.capabilities import TransactionState

_STATES: Final = {0: TransactionState.ENDED, 2: TransactionState.OPEN, 3: TransactionState.OPEN}  # libpq's
_CANCEL: Final = 2.0  # seconds to ask the server to cancel a statement


def state_of(driver: Any) -> TransactionState:
    """Return the state of a connection of psycopg, psycopg2 or asyncpg. One that an interrupt left in a statement is closed."""
    if driver is None:
        return TransactionState.LOST
    if hasattr(driver, "is_in_transaction"):
        if driver.is_closed():
            return TransactionState.LOST
        return TransactionState.OPEN if driver.is_in_transaction() else TransactionState.ENDED
    status = int(driver.info.transaction_status)
    if status == TransactionStatus.ACTIVE and isinstance(driver, Connection) and not driver.lock.locked():
        abort(driver)
    return _STATES.get(status, TransactionState.LOST)


def check_encoding(driver: Any) -> None:
    """Raise ValueError if a connection of psycopg, psycopg2 or asyncpg cannot carry every text: a result would come back altered."""
    if hasattr(driver, "get_settings"):  # asyncpg
        encoding = driver.get_settings().client_encoding
    else:
        encoding = driver.info.parameter_status("client_encoding")
    if encoding is not None and encoding.strip("'").upper() not in {
        "UTF8",
        "UTF-8",
    }:  # PgBouncer tells what asyncpg wrote
        raise ValueError(
            f"the connection's client_encoding is {encoding}, and a ledger needs UTF8: SET client_encoding TO UTF8"
        )


def abort(driver: Connection[Any]) -> None:
    """Cancel a statement whose answer nobody will read, and close the connection: else the server keeps the key locked."""
    with contextlib.suppress(Exception):
        driver.cancel_safe(timeout=_CANCEL)
    driver.pgconn.finish()


def sqlstate(error: BaseException | None) -> str:
    """Return the SQLSTATE of a driver's error, within those that other libraries wrap around it; "" if it has none."""
    while error is not None:
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        if state:
            return str(state)
        error = getattr(error, "orig", None) or error.__cause__
    return ""
