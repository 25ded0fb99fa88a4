"""Where the application is, and connections to it, which h11 reads and writes. Each request has its own.

A kept one may have bytes that were sent unasked, or close just as a request goes out: nobody could tell whether that was carried out.
"""

import asyncio
import re
from typing import Any, Final

import h11

from onceward.core.arguments import check_type
from onceward.core.urls import shown_url
from onceward.wire import tls
from onceward.wire.endpoints import split_url
from onceward.wire.streams import TailReader, connect

_CONNECT_WITHIN: Final = 10.0  # seconds
_PART: Final = 1 << 16  # bytes of a head, and of a body that are passed on at once
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*").fullmatch  # RFC 9110, section 5.5; h11 takes more


class Upstream:
    """The application at an address. ``base`` stands before the path of each request; ``authority`` is its ``Host``."""

    def __init__(self, address: str) -> None:
        check_type("Proxy(upstream)", address, str, "a URL such as http://127.0.0.1:8000")
        self.address = address
        self._socket = address.removeprefix("unix:") if address.startswith("unix:") else None
        self._origin, parts = split_url("http://localhost" if self._socket else address)
        self._origin.host.encode("idna")  # raises UnicodeError, a ValueError, for a name that none can have
        if "?" in address:
            raise ValueError(f"upstream={shown_url(address)!r}: give a URL without a query")
        self._tls = tls.context(tls.SSL_BUNDLE) if parts.scheme == "https" else None
        self.base, self.authority = parts.path.rstrip("/").encode(), self._origin.authority.encode()

    async def connected(self) -> "Link":
        """Return a new connection. Raises OSError if the upstream takes none: nothing was sent."""
        async with asyncio.timeout(_CONNECT_WITHIN):
            return Link(*await connect(self._socket or self._origin, self._tls))


class Link:
    """A connection for one request. The answer can come before the request is sent; RemoteProtocolError says that it broke off."""

    def __init__(self, reader: TailReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_PART)

    async def send(self, *events: h11.Event) -> None:
        """Send parts of the request. Raises OSError."""
        self._writer.write(b"".join(self._http.send(event) or b"" for event in events))
        await self._writer.drain()

    async def head(self) -> h11.Response:
        """Return the head of the answer. Interim ones (1xx) are dropped: ASGI cannot pass them on."""
        while not isinstance(head := await self._next(), h11.Response):
            pass
        names = {name for name, _ in head.headers}
        if b"transfer-encoding" in names and (b"content-length" in names or head.http_version != b"1.1"):
            raise h11.RemoteProtocolError("the answer's length is not clear")
        if head.status_code > 599 or not all(_VALUE(value) for _, value in head.headers):
            raise h11.RemoteProtocolError("the answer has a status or a header that cannot be")
        return head

    async def part(self) -> bytes | None:
        """Return the next part of the answer's body; None at its end."""
        event = await self._next()
        return bytes(event.data) if isinstance(event, h11.Data) else None

    async def _next(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = await self._reader.read(_PART)
            if not data and self._reader.broken is not None:
                raise h11.RemoteProtocolError("the connection was broken off") from self._reader.broken
            self._http.receive_data(data)
        return event

    def close(self) -> None:
        """Close it at once: what is still to be sent is dropped."""
        self._writer.transport.abort()
