"""A limit of time for what a driver does on the caller's connection: most drivers have none for a server that does not answer.

One thread looks now and then for what takes too long, and shuts down the connection's socket. Then the driver raises.
"""

import contextlib
import os
import selectors
import socket
import threading
import time
from itertools import count
from types import TracebackType
from typing import Any, Final
from weakref import ref

from onceward.core.clock import boottime
from onceward.stores.lanes.refusals import Broken

# poll() where there is one: select() takes no descriptor above 1024.
Selector: Final[type[selectors.BaseSelector]] = getattr(selectors, "PollSelector", selectors.DefaultSelector)
_TICK: Final = 0.2  # seconds between two looks
_REST: Final = 10.0  # seconds without a connection in use after which the thread ends
_NUMBERS: Final = count()
_threads: Final[list[threading.Thread]] = []  # none or one
_shutting = threading.Lock()  # held while a socket is shut down: until then its number must not be another one's


class limited:  # noqa: N801 - for a with statement
    """Shut down a driver's connection if the block takes longer than so many seconds.

    Raises:
        Broken: the block has failed because it took too long.
    """

    def __init__(self, driver: Any, seconds: float) -> None:
        self.driver, self._seconds, self._number = driver, seconds, next(_NUMBERS)

    def __enter__(self) -> None:
        if not _threads:
            _start()
        _LIMITS[self._number] = ref(self), boottime() + self._seconds

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _LIMITS.pop(self._number, None) is not None:
            return
        with _shutting:
            pass
        if isinstance(error, Exception):
            raise Broken(f"the server has not answered in time, {self._seconds:g} s") from error


# By their numbers, each block, and when its connection is shut down. Weak: an interrupt can end a block before it is taken out.
_LIMITS: Final[dict[int, tuple[ref[limited], float]]] = {}


def shut(driver: Any) -> None:
    """Shut down a connection's socket, also while somebody waits for its answer: the server then rolls back."""
    try:
        # A copy: its own number can be another one's when it is shut down.
        copy = socket.fromfd(number_of(driver), socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, AttributeError, ValueError, getattr(driver, "Error", OSError)) as error:
        if isinstance(error, TimeoutError):  # of a signal handler: nothing here waits
            raise
        return  # it is closed, so the driver raises its own error
    with contextlib.suppress(OSError), copy:
        copy.shutdown(socket.SHUT_RDWR)


def number_of(driver: Any) -> int:
    """Return the number of a connection's socket. Raises AttributeError, or the driver's error, if there is none."""
    if hasattr(driver, "fileno"):  # psycopg's and psycopg2's
        return int(driver.fileno())
    plain = getattr(driver, "_sock", None)  # PyMySQL's and redis-py's
    if plain is None:
        plain = transport_of(driver).get_extra_info("socket")
    return int(plain.fileno())


def transport_of(driver: Any) -> Any:
    """Return asyncio's transport of a connection of asyncmy, asyncpg or redis-py."""
    writer = getattr(driver, "_writer", None)
    return driver._transport if writer is None else writer.transport  # noqa: SLF001 - no public names


def _start() -> None:
    thread = threading.Thread(target=_look, name="onceward-limits", daemon=True)
    with contextlib.suppress(RuntimeError):  # no more threads, or the interpreter exits
        thread.start()
        _threads.append(thread)


def _look() -> None:
    used_at = boottime()
    while True:
        time.sleep(_TICK)
        now = boottime()
        for number, (weak, end) in list(_LIMITS.items()):
            if now < end and weak() is not None:
                continue
            with _shutting:
                if _LIMITS.pop(number, None) is not None and (block := weak()) is not None:
                    shut(block.driver)
        if _LIMITS:
            used_at = now
        elif now - used_at > _REST:
            _threads.clear()
            if not _LIMITS:  # else the block that began just now has not seen that a thread is needed
                return


def _forget() -> None:
    """Leave the parent's connections alone, in a forked child: their sockets are the same."""
    global _shutting  # the parent's thread may have held it
    _LIMITS.clear()
    _threads.clear()
    _shutting = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
