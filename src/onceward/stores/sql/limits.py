"""A limit of time for what a driver does on the caller's connection: most drivers have none for a server that does not answer.

One thread looks now and then for what takes too long, and shuts down the connection's socket. Then the driver raises.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from onceward.core.clock import boottime
from onceward.stores.sql.refusals import Broken

_TICK: Final = 0.2  # seconds between two looks
_REST: Final = 10.0  # seconds without a connection in use after which the thread ends
_LIMITS: Final[dict[socket.socket, float]] = {}  # when each socket is shut down. Who takes one out closes it.
_threads: Final[list[threading.Thread]] = []  # none or one


@contextlib.contextmanager
def limited(driver: Any, seconds: float) -> Iterator[None]:
    """Shut down a driver's connection if the block takes longer. One that tells no socket is not limited.

    Raises:
        Broken: the block has failed because it took too long.
    """
    copy = _socket_of(driver)
    if copy is None:
        yield
        return
    try:
        _LIMITS[copy] = boottime() + seconds
        if not _threads:
            _start()
        yield
    except Exception as error:
        if copy not in _LIMITS:
            raise Broken(f"the server has not answered in time, {seconds:g} s") from error
        raise
    finally:
        if _LIMITS.pop(copy, None) is not None:
            copy.close()


def _socket_of(driver: Any) -> socket.socket | None:
    """Return a copy of a connection's socket: its own number can be another one's when it is shut down."""
    number = getattr(driver, "fileno", None)
    if number is None:
        return None
    try:
        return socket.fromfd(number(), socket.AF_INET, socket.SOCK_STREAM)
    except Exception:  # it is closed, so the driver raises its own error
        return None


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
        for copy, end in list(_LIMITS.items()):
            if now >= end and _LIMITS.pop(copy, None) is not None:
                with contextlib.suppress(OSError), copy:
                    copy.shutdown(socket.SHUT_RDWR)
        if _LIMITS:
            used_at = now
        elif now - used_at > _REST:
            _threads.clear()
            if not _LIMITS:  # else the block that began just now has not seen that a thread is needed
                return


def _forget() -> None:
    """Leave the parent's connections alone, in a forked child: their sockets are the same."""
    _LIMITS.clear()
    _threads.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
