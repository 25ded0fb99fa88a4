"""Where the application is, and connections to it, which h11 reads and writes."""

import re
from typing import Any, Final

import h11

from onceward.core.arguments import check_type
from onceward.core.urls import shown_url
from onceward.wire import tls
from onceward.wire.endpoints import split_url
from onceward.wire.streams import OpenStream, Streams

_PART: Final = 1 << 16  # bytes of a head, and of a body that are passed on at once
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*").fullmatch  # RFC 9110, section 5.5; h11 takes more


class Upstream:
    """The application at an address. ``base`` stands before the path of each request; ``authority`` is its ``Host``."""

    def __init__(self, address: str) -> None:
        check_type("Proxy(upstream)", address, str, "a URL such as http://127.0.0.1:8000")
        self.address = address
        socket = address.removeprefix("unix:") if address.startswith("unix:") else ""
        origin, parts = split_url("http://localhost" if socket else address)
        origin.host.encode("idna")  # raises UnicodeError, a ValueError, for a name that none can have
        if "?" in address:
            raise ValueError(f"upstream={shown_url(address)!r}: give a URL without a query")
        context = tls.context(tls.SSL_BUNDLE) if parts.scheme == "https" else None
        self._streams = Streams(socket or origin, context)
        self.base, self.authority = parts.path.rstrip("/").encode(), origin.authority.encode()
        self.close = self._streams.close

    async def connected(self) -> "Link":
        """Return a connection. Raises OSError if the upstream takes none: nothing was sent."""
        return Link(await self._streams.take(), self._streams)


class Link:
    """A connection for one request. The answer can come before the request is sent; RemoteProtocolError says that it broke off."""

    def __init__(self, stream: OpenStream, streams: Streams) -> None:
        self._stream, self._streams, self.close = stream, streams, stream.close
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_PART)

    async def send(self, *events: h11.Event) -> None:
        """Send parts of the request. Raises OSError."""
        self._stream.writer.write(b"".join(self._http.send(event) or b"" for event in events))
        await self._stream.writer.drain()

    async def head(self, method: bytes) -> h11.Response:
        """Return the head of the answer. Interim ones (1xx) are dropped: ASGI cannot pass them on."""
        while not isinstance(head := await self._next(), h11.Response):
            pass
        fields = dict(head.headers)
        is_chunked = b"transfer-encoding" in fields
        if is_chunked and (b"content-length" in fields or head.http_version != b"1.1"):
            raise h11.RemoteProtocolError("the answer's length is not clear")
        if head.status_code > 599 or not all(_VALUE(value) for _, value in head.headers):
            raise h11.RemoteProtocolError("the answer has a status or a header that cannot be")
        # Some applications send a body all the same. It must not become the answer to the next request.
        has_length = is_chunked or fields.get(b"content-length", b"0") != b"0"
        self._is_sure = method != b"HEAD" and not (has_length and head.status_code in {204, 304})
        return head

    async def part(self) -> bytes | None:
        """Return the next part of the answer's body; None at its end."""
        event = await self._next()
        return bytes(event.data) if isinstance(event, h11.Data) else None

    async def _next(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = await self._stream.reader.read(_PART)
            if not data and self._stream.is_cut:
                raise h11.RemoteProtocolError("the connection was broken off") from self._stream.reader.broken
            self._http.receive_data(data)
        return event

    def end(self) -> None:
        """Keep the connection for another request, if this one and its answer have ended, and nothing has come unasked."""
        is_done = self._http.our_state is self._http.their_state is h11.DONE and not self._http.trailing_data[0]
        (self._streams.give if is_done and self._is_sure else OpenStream.close)(self._stream)
