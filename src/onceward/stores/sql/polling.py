"""poll() for sockets, also on Windows, which has none. select() takes no descriptor above 1024, so poll() is preferred."""

import select
from typing import Any, Final, Protocol

READ: Final[int] = getattr(select, "POLLIN", 1)
WRITE: Final[int] = getattr(select, "POLLOUT", 4)


class Poller(Protocol):
    """What waits for sockets."""

    def register(self, fd: int, eventmask: int, /) -> object:
        """Wait for this event of a socket, too."""

    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]:
        """Wait for so many milliseconds. Return the sockets that are ready, and their events."""


class Selecting:
    """What stands for poll() where there is none."""

    def __init__(self) -> None:
        self._wanted: dict[int, int] = {}

    def register(self, fd: int, eventmask: int, /) -> None:
        """As :class:`Poller`."""
        self._wanted[fd] = eventmask

    def poll(self, timeout: float | None = None, /) -> list[tuple[int, int]]:
        """As :class:`Poller`. A socket that has failed is ready."""
        reading, writing = ([fd for fd, event in self._wanted.items() if event == one] for one in (READ, WRITE))
        found = select.select(reading, writing, [*self._wanted], None if timeout is None else timeout / 1000)
        return [(fd, self._wanted[fd]) for fd in {fd for ready in found for fd in ready}]


def poller() -> Poller:
    """Return what waits for sockets on this system."""
    makes: Any = getattr(select, "poll", Selecting)
    made: Poller = makes()
    return made
