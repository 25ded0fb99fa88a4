"""Connections by asyncio's streams."""

import asyncio
from typing import TYPE_CHECKING

from onceward.wire.endpoints import Origin

if TYPE_CHECKING:
    import ssl


class TailReader(asyncio.StreamReader):
    """Gives what came before the connection broke off, and then its end. asyncio's own drops it.

    Attributes:
        broken: why the connection broke off; None if it did not.
    """

    broken: Exception | None = None

    def set_exception(self, exc: Exception) -> None:
        """As asyncio says."""
        self.broken = exc
        self.feed_eof()


async def connect(
    place: Origin | str, context: "ssl.SSLContext | None" = None
) -> tuple[TailReader, asyncio.StreamWriter]:
    """Return a connection to an origin, with TLS if there is a context, or to the Unix socket at a path. Raises OSError."""
    loop, reader = asyncio.get_running_loop(), TailReader()
    made = asyncio.StreamReaderProtocol(reader)
    if isinstance(place, str):
        transport: asyncio.Transport = (await loop.create_unix_connection(lambda: made, place))[0]
    else:
        transport = (await loop.create_connection(lambda: made, place.host, place.port, ssl=context))[0]
    return reader, asyncio.StreamWriter(transport, made, reader, loop)
