"""What the caller's connection of PyMySQL or asyncmy says of its transaction, and how ours are run on it."""

from collections.abc import Sequence
from typing import Any

import pymysql

from onceward.stores.capabilities import TransactionState
from onceward.stores.mysql.lane import drop
from onceward.stores.mysql.talk import IN_TRANSACTION, fetch, fetch_async
from onceward.stores.sql.limits import shut
from onceward.stores.sql.queries import Row


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
