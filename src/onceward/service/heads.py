"""Requests whose head never comes: uvicorn would keep their connections for ever, until no file descriptor is left for others."""

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle


class TimedHeads(H11Protocol):
    """HTTP/1.1 by h11. It closes a connection whose next request does not begin in time.

    httptools drops the body of a request that offers an upgrade, as each of Java's HttpClient does.

    Attributes:
        within: seconds.
    """

    within: ClassVar[float] = 30.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """As asyncio says."""
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        """As asyncio says."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """As uvicorn says."""
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """As asyncio says."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        """Begin to count, or stop if a request is under way. Bytes of a head that is not complete do not begin anew."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete:
            if self._timer is None:
                self._timer = self.loop.call_later(self.within, self._late)
        elif self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        self.transport.close()
