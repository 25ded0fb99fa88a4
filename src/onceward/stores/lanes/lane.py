"""A few connections, and what becomes of one after an error."""

import asyncio
import contextlib
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from selectors import EVENT_READ, BaseSelector
from typing import Any
from weakref import WeakSet, finalize

from onceward.errors import StoreError
from onceward.stores.lanes.limits import Selector, number_of
from onceward.stores.lanes.line import WaitingLine
from onceward.stores.lanes.refusals import Broken, SqlRefusal


class ServerLane(ABC):
    """One connection, which is opened by its first request. Dropping it closes it.

    Attributes:
        is_ready: whether it was opened, and its session has the ledger's settings.
    """

    is_ready = False

    @property
    @abstractmethod
    def is_alive(self) -> bool:
        """Whether it is ready, and still open as far as this end knows."""

    @abstractmethod
    def fetch(self, *asked: Any) -> Any:
        """Run a request's statements, and return their rows or an awaitable of them. Raises SqlRefusal, Broken or ValueError.

        It opens the connection if it is not ready, anew if an earlier try was stopped.
        """

    @abstractmethod
    def close(self, *, friendly: bool = False) -> None:
        """Close it, with a word to the server if it is ``friendly``."""


class SocketLane(ServerLane):
    """A lane over a driver's connection. A forked child leaves it to the parent."""

    _wire: Any = None  # the driver's connection
    # Closes one, with a word to the server if that is to be friendly. It knows no lane, which would live for ever.
    _close: Callable[[Any, bool], object]

    def __init__(self) -> None:
        self._process = os.getpid()
        self._held: list[Any] = []  # the connection, until it is closed

    def _hold(self, wire: Any) -> Any:
        """Take over a connection, and return it."""
        self._wire, self._held = wire, [wire]
        # Not by __del__ alone: in a circle, the collector may end the driver's socket before the lane, and that one warns.
        finalize(self, _drop, self._process, self._close, self._held).atexit = False
        return wire

    def close(self, *, friendly: bool = False) -> None:
        self._wire = None
        _drop(self._process, self._close, self._held, friendly=friendly)

    def __del__(self) -> None:  # also when the interpreter ends
        self.close()


def _drop(process: int, close: Callable[[Any, bool], object], held: list[Any], *, friendly: bool = False) -> None:
    if held and os.getpid() == process:
        with contextlib.suppress(Exception):
            close(held.pop(), friendly)


class WatchedLane(SocketLane):
    """A lane that sees whether its idle server has hung up."""

    _reading: BaseSelector  # an idle server says nothing but its end

    def _open(self) -> None:
        """Note that the connection is ready for requests."""
        self.is_ready, self._reading = True, Selector()
        self._reading.register(number_of(self._wire), EVENT_READ)

    @property
    def is_alive(self) -> bool:
        return self.is_ready and self._wire is not None and not self._reading.select(0)


class Lanes(ABC):
    """The lanes of all threads, or of one event loop. For the arguments, see :class:`onceward.stores.lanes.LedgerLanes`."""

    def __init__(self, make: Callable[[], ServerLane], most: int, timeout: float, leave_on: frozenset[str]) -> None:
        self._make, self._most, self._timeout, self._leave_on = make, most, timeout, leave_on
        self._line = WaitingLine()
        self._lock = threading.RLock()  # of threads: a signal handler can come in
        self._idle: list[ServerLane] = []
        self._all: WeakSet[ServerLane] = WeakSet()  # one that an interrupt lost counts no longer
        self._closed = False

    def _pop(self) -> ServerLane | None:
        """Take an idle lane. Another thread may be closing them."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _free(self) -> ServerLane | None:
        """Return an idle lane, or a new one; None if all are in use."""
        while (lane := self._pop()) is not None:
            if lane.is_alive:
                return lane
            self._drop(lane)
        if len(self._all) >= self._most:
            return None
        lane = self._make()
        self._all.add(lane)
        return lane

    def _drop(self, lane: ServerLane, *, friendly: bool = False) -> None:
        self._all.discard(lane)
        lane.close(friendly=friendly)

    def _is_usable(self, lane: ServerLane, error: BaseException) -> bool:
        """Return whether a lane can be used again after this error."""
        if isinstance(error, SqlRefusal):
            return lane.is_ready and error.state not in self._leave_on
        return isinstance(error, ValueError | StoreError)

    def _for_one(self, lane: ServerLane, error: Exception) -> Exception:
        """Return the error of one request of a batch. Raise it if it ends the batch."""
        if not self._is_usable(lane, error):
            raise error
        return error

    def _can_wait(self, lane: ServerLane, error: BaseException) -> bool:
        """Return whether the request of a lane that could not open, and so has not left, can wait for one that is open."""
        unsent = not lane.is_ready and isinstance(error, Broken | SqlRefusal)
        return unsent and any(one.is_ready for one in list(self._all))

    @abstractmethod
    def _pass_on(self, lane: ServerLane) -> None:
        """Give a lane to what waits, or take it back."""

    def _end(self, lane: ServerLane, error: BaseException) -> None:
        """Take back a lane after an error."""
        with self._lock:
            if self._is_usable(lane, error):
                self._pass_on(lane)
                return
            self._drop(lane)
            if lane.is_ready and isinstance(error, Broken | SqlRefusal):
                self.clear()  # the others may be as dead, and each would take as long to find out
            # If the server takes no more connections, those that are open serve the line.
            if self._line and (lane.is_ready or not self._all) and (other := self._free()) is not None:
                self._pass_on(other)

    def clear(self, *, friendly: bool = False) -> None:
        """Close the idle lanes."""
        while (lane := self._pop()) is not None:
            self._drop(lane, friendly=friendly)

    def close(self) -> None:
        """Close the idle lanes, and each other one when its request has ended."""
        self._closed = True
        self.clear(friendly=True)

    def _in_use(self) -> Broken:
        return Broken(
            f"all {self._most} connections are in use for {self._timeout:g} s: raise lanes=, or lower the concurrency"
        )

    def _no_word(self) -> Broken:
        return Broken(f"the request has left, and there is no answer within {3 * self._timeout:g} s")


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
