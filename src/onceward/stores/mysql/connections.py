"""What the caller's connection of PyMySQL or asyncmy says of its transaction, and how ours are run on it."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pymysql

from onceward.stores.capabilities import TransactionState
from onceward.stores.mysql.lane import drop
from onceward.stores.mysql.talk import IN_TRANSACTION, fetch, fetch_async
from onceward.stores.sql.queries import Row
from onceward.stores.sql.refusals import Broken


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
    if isinstance(driver, pymysql.Connection):
        driver._force_close()  # noqa: SLF001 - the public one talks to the server
    elif driver is not None:
        drop(driver)


@contextlib.contextmanager
def limited(driver: Any, seconds: float) -> Iterator[None]:
    """Let a blocking connection give up after so many seconds without an answer; it is closed then."""
    before = driver._read_timeout  # noqa: SLF001 - no public name
    driver._read_timeout = min(before or seconds, seconds)  # noqa: SLF001 - as above
    try:
        yield
    finally:
        driver._read_timeout = before  # noqa: SLF001 - as above


def run(driver: Any, texts: Sequence[str], seconds: float) -> list[Row]:
    """Run statements on a blocking connection. It is closed if that ends in the middle of one."""
    try:
        with limited(driver, seconds):
            return fetch(driver, texts)
    except Exception:  # the driver closes it if the stream is in disorder
        raise
    except BaseException:
        cut(driver)
        raise


async def run_async(driver: Any, texts: Sequence[str], seconds: float) -> list[Row]:
    """As :func:`run`, for a connection of coroutines."""
    try:
        async with asyncio.timeout(seconds):
            return await fetch_async(driver, texts)
    except TimeoutError as error:
        cut(driver)
        raise Broken(f"the server has not answered for {seconds:g} s") from error
    except Exception:
        raise
    except BaseException:
        cut(driver)
        raise
