"""Connections by asyncio's streams, kept for later requests."""

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from onceward.wire.connections import IdleConnections
from onceward.wire.endpoints import Origin

if TYPE_CHECKING:
    import ssl

_CONNECT_WITHIN: Final = 10.0  # seconds
# Seconds that an idle connection is used again. Servers keep them longer, so they close no connection just as a request goes out:
# nobody could tell then whether the request was carried out.
_IDLE: Final = 1.0


class TailReader(asyncio.StreamReader):
    """Gives what came before the connection broke off, and then its end. asyncio's own drops it.

    Attributes:
        unread: bytes that have come and were not read.
        broken: why the connection broke off; None if it did not.
    """

    unread = 0
    broken: Exception | None = None

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]  # a protocol is given bytes
        """As asyncio says."""
        self.unread += len(data)
        super().feed_data(data)

    async def read(self, n: int = -1) -> bytes:
        """As asyncio says."""
        data = await super().read(n)
        self.unread -= len(data)
        return data

    def set_exception(self, exc: Exception) -> None:
        """As asyncio says."""
        self.broken = exc
        self.feed_eof()


class OpenStream(NamedTuple):
    """A connection."""

    reader: TailReader
    writer: asyncio.StreamWriter

    @property
    def is_quiet(self) -> bool:
        """Whether it is open, and nothing has come unasked, which would be read as the answer to the next request."""
        return not (self.reader.unread or self.reader.at_eof() or self.writer.is_closing())

    @property
    def is_cut(self) -> bool:
        """Whether it broke off. Over TLS its end is real only after the sender's closure alert (RFC 9112, section 9.8)."""
        tls = self.writer.get_extra_info("ssl_object")
        if self.reader.broken is not None or tls is None:
            return self.reader.broken is not None
        import ssl

        try:
            tls.read(1)
        except ssl.SSLZeroReturnError:  # both sides have closed it
            return False
        except OSError:
            return True
        return False

    def close(self) -> None:
        """Close it at once: what is still to be sent is dropped."""
        self.writer.transport.abort()


class Streams:
    """Connections to an origin, with TLS if there is a ``context``, or to the Unix socket at a path."""

    def __init__(self, place: Origin | str, context: "ssl.SSLContext | None" = None) -> None:
        self._place, self._context = place, context
        self._idle = IdleConnections[OpenStream](lambda stream: stream.is_quiet, idle=_IDLE)
        self.give = self._idle.give
        self.close = self._idle.close

    async def take(self) -> OpenStream:
        """Return a connection for one request. Raises OSError if it cannot be made: nothing was sent."""
        if (kept := self._idle.take()) is not None:
            return kept
        loop, reader = asyncio.get_running_loop(), TailReader()
        made, place = asyncio.StreamReaderProtocol(reader), self._place
        async with asyncio.timeout(_CONNECT_WITHIN):
            if isinstance(place, str):
                transport: asyncio.Transport = (await loop.create_unix_connection(lambda: made, place))[0]
            else:
                made_with = await loop.create_connection(lambda: made, place.host, place.port, ssl=self._context)
                transport = made_with[0]
        return OpenStream(reader, asyncio.StreamWriter(transport, made, reader, loop))
