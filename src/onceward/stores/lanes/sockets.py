"""Lanes over a driver's socket, and the end of asyncio's transports."""

import asyncio
import contextlib
import os
from abc import abstractmethod
from collections.abc import Callable
from selectors import EVENT_READ, BaseSelector
from typing import Any

from onceward.stores.lanes.lane import ServerLane
from onceward.stores.sql.limits import Selector, number_of


class SocketLane(ServerLane):
    """A lane that sees whether its idle server has hung up. A forked child leaves it to the parent."""

    _wire: Any = None  # the driver's connection
    _reading: BaseSelector  # an idle server says nothing but its end

    def __init__(self) -> None:
        self._process = os.getpid()

    def _open(self) -> None:
        """Take over a connection that is ready for requests."""
        self.is_ready, self._reading = True, Selector()
        self._reading.register(number_of(self._wire), EVENT_READ)

    @property
    def is_alive(self) -> bool:
        return self.is_ready and self._wire is not None and not self._reading.select(0)

    def close(self, *, friendly: bool = False) -> None:
        wire, self._wire = self._wire, None
        if wire is not None and os.getpid() == self._process:
            with contextlib.suppress(Exception):
                self._close(wire, friendly=friendly)

    @abstractmethod
    def _close(self, wire: Any, *, friendly: bool) -> None:
        """Close the driver's connection."""

    def __del__(self) -> None:
        self.close()


def drop(transport: Any, loop: asyncio.AbstractEventLoop, close: Callable[[], object]) -> None:
    """Close a transport from any thread, also if its loop is closed: else ``close`` does it, in the loop's thread."""
    if asyncio._get_running_loop() is loop:  # the documented one raises where there is none
        close()
    elif loop.is_running():
        loop.call_soon_threadsafe(close)
    elif not loop.is_closed():  # which runs once more when it is closed
        close()
    else:  # nobody would run what a close leaves to the loop
        inner = getattr(getattr(transport, "_ssl_protocol", None), "_transport", transport)  # below TLS
        plain, inner._sock = getattr(inner, "_sock", None), None  # noqa: SLF001 - else it warns that nobody closed it
        inner._closing = transport._closed = True  # noqa: SLF001 - as above, also of a stream and with TLS
        if plain is not None:
            plain.close()
