"""The connections that both wires keep for later requests, and the limits of both."""

import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from onceward.core.clock import boottime
from onceward.wire import tls

LIMIT: Final = 32 * 1024 * 1024  # bytes of an answer's content
CONNECT_TIMEOUT: Final = 2.0  # seconds to open a connection
KEPT: Final = 64  # idle connections to one origin; requests of one event loop that run at once
IDLE: Final = 60.0  # seconds; an older idle connection is not reused, because the network may have dropped it
CHUNK: Final = 65536  # bytes per read
_POLLS: Final = hasattr(select, "poll")  # Windows has none


class _Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=_Closable)


class IdleConnections(Generic[C]):
    """The idle connections to one origin. A deque's ends are safe to share between threads."""

    def __init__(self, is_fit: Callable[[C], bool], idle: float | None = None) -> None:
        self._is_fit, self._within = is_fit, idle
        self._idle: deque[tuple[float, C]] = deque()

    def take(self) -> C | None:
        """Return the usable connection that was used last, or None."""
        while True:
            try:
                since, connection = self._idle.pop()
            except IndexError:
                return None
            if boottime() - since < (self._within or IDLE) and self._is_fit(connection):
                return connection
            connection.close()

    def give(self, connection: C) -> None:
        """Keep a connection for the next request, or close it if there are enough."""
        if len(self._idle) < KEPT:
            self._idle.append((boottime(), connection))
        else:
            connection.close()

    def close(self) -> None:
        """Close all connections."""
        while self._idle:
            try:
                self._idle.pop()[1].close()
            except IndexError:
                return  # another thread took the last


def is_quiet(connection: socket.socket) -> bool:
    """Return whether an idle connection has received no data.

    Unexpected data, such as a second answer to the last request, would be read as the answer to the next one.
    """
    if _POLLS:
        watched = select.poll()
        watched.register(connection, select.POLLIN)
        if not watched.poll(0):
            return True
    connection.settimeout(0)
    try:
        connection.recv(1)
    except OSError as error:  # TLS may send records without data, such as a session ticket
        return isinstance(error, BlockingIOError | InterruptedError) or tls.wants_more(error)
    return False
