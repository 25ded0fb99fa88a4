"""One connection to the upstream: bytes out, and bytes in from a buffer of limited size."""

import asyncio
from time import monotonic
from typing import Final, cast

from onceward.wire.http1 import Unreadable

_HIGH: Final = 1 << 16  # bytes in the buffer, above which the upstream must wait


class Connection(asyncio.Protocol):
    """A connection that reads what its user asks for.

    Attributes:
        idle_since: when its last answer ended, on the monotonic clock.
    """

    idle_since = 0.0
    _transport: asyncio.Transport
    _ended = False
    _error: Exception | None = None
    _reader: "asyncio.Future[None] | None" = None
    _writer: "asyncio.Future[None] | None" = None
    _is_full = False  # whether the transport's own buffer for writing is full

    def __init__(self) -> None:
        self._data = bytearray()

    # --- asyncio.Protocol -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio says."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """As asyncio says."""
        self._data += data
        if len(self._data) > _HIGH:
            self._transport.pause_reading()
        _wake(self._reader)

    def eof_received(self) -> bool:
        """As asyncio says. The other direction may still be in use."""
        self._ended = True
        _wake(self._reader)
        return self._transport.get_extra_info("sslcontext") is None

    def connection_lost(self, exc: Exception | None) -> None:
        """As asyncio says."""
        self._ended, self._error = True, exc
        _wake(self._reader)
        self.resume_writing()

    def pause_writing(self) -> None:
        """As asyncio says."""
        self._is_full = True

    def resume_writing(self) -> None:
        """As asyncio says."""
        self._is_full = False
        _wake(self._writer)

    # --- its user ---------------------------------------------------------------------------------------------------

    @property
    def is_free(self) -> bool:
        """Whether it can carry another request: it is open, and the upstream has sent nothing unasked."""
        return not (self._ended or self._data or self._transport.is_closing())

    @property
    def idle(self) -> float:
        """Seconds since its last answer ended."""
        return monotonic() - self.idle_since

    def rest(self) -> None:
        """Note that its answer has ended."""
        self.idle_since = monotonic()

    def write(self, data: bytes) -> None:
        """Send bytes, or keep them until they can be sent."""
        self._transport.write(data)

    async def drain(self) -> None:
        """Wait until what was written can be sent. Raises ConnectionResetError if the connection has ended."""
        if self._transport.is_closing():
            raise ConnectionResetError("the connection was closed")
        if self._is_full:
            self._writer = asyncio.get_running_loop().create_future()
            try:
                await self._writer
            finally:
                self._writer = None

    async def until(self, separator: bytes, most: int) -> bytes:
        """Return the bytes before ``separator``, which is taken, too.

        Raises:
            ConnectionResetError: the connection ended before.
            Unreadable: there are more than ``most`` bytes without it.
        """
        start = 0
        while (end := self._data.find(separator, start)) < 0:
            if len(self._data) > most:
                raise Unreadable(f"a line or the headers of the answer have more than {most} bytes")
            start = max(0, len(self._data) - len(separator))
            if not await self._more():
                raise ConnectionResetError("the connection was closed before the answer was complete")
        found = bytes(self._data[:end])
        del self._data[: end + len(separator)]
        return found

    async def some(self, most: int) -> bytes:
        """Return 1 to ``most`` bytes, or none at the connection's end. Raises OSError if it was broken off."""
        while not self._data:
            if not await self._more():
                if self._error is not None:
                    raise ConnectionResetError("the connection was broken off") from self._error
                return b""
        if len(self._data) <= most:
            part = bytes(self._data)
            self._data.clear()
        else:
            part = bytes(self._data[:most])
            del self._data[:most]
        return part

    async def _more(self) -> bool:
        """Wait for more bytes; tell whether some have come."""
        if self._ended:
            return False
        have = len(self._data)
        self._transport.resume_reading()
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None
        return len(self._data) > have

    def close(self) -> None:
        """Close it at once: what is still to be sent is dropped."""
        self._transport.abort()


def _wake(waiter: "asyncio.Future[None] | None") -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
