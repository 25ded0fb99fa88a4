"""Where the application is, and connections to it, which h11 reads and writes."""

import asyncio
import ipaddress
import os
import re
import ssl
from collections.abc import Collection
from typing import Any, Final, NamedTuple

import h11

from onceward.claim.claim import Claim
from onceward.core.urls import shown_url
from onceward.http.answer import HOP_BY_HOP
from onceward.http.route import HEADER
from onceward.web.asgi_messages import Message, Scope
from onceward.wire import tls
from onceward.wire.connections import IdleConnections
from onceward.wire.endpoints import split_url

Lines = list[tuple[bytes, bytes]]
_HOPS: Final = frozenset(name.encode() for name in HOP_BY_HOP)
_LENGTH: Final = b"content-length"
_WITHOUT_BODY: Final = {"DELETE", "GET", "HEAD", "OPTIONS"}  # they need no length (RFC 9110, section 8.6)
_KEY: Final = HEADER.lower().encode()
# The proxy writes these itself. It answers Expect itself, too, as servers of ASGI do.
_OWN: Final = {
    _LENGTH,
    b"expect",
    b"forwarded",
    b"host",
    b"proxy-authorization",
    b"onceward-attempt",
    b"onceward-fence",
}
_FOR, _HOST, _PROTO = b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"
_FORWARDED: Final = frozenset({b"forwarded", _FOR, _HOST, b"x-forwarded-port", _PROTO, b"x-real-ip"})


class RequestHeaders:
    """Makes the headers of requests. ``authority`` is their ``Host``. ``trusted`` proxies are believed."""

    def __init__(self, authority: bytes, trusted: Collection[str]) -> None:
        self._authority = authority
        self._trusted = {str(ipaddress.ip_address(address)) for address in trusted}
        self._name = b"onceward-" + os.urandom(4).hex().encode()  # so that it knows a request that comes back

    def is_loop(self, headers: Lines) -> bool:
        """Return whether a request has passed this proxy before."""
        return any(name == b"via" and self._name in value for name, value in headers)

    def lines(self, scope: Scope, first: Message, claim: Claim | None) -> Lines:
        """Return the lines for the upstream. With a claim it gets a key of its own. ``first`` begins the body."""
        peer: str = (scope.get("client") or [""])[0]
        left_out = _connection(scope["headers"]) | _OWN | ({_KEY} if claim else set())
        if peer not in self._trusted:
            left_out |= _FORWARDED
        # Many applications read "_" in a name as "-", so a name with it could pass for one that is left out or set here.
        guarded = left_out | _FORWARDED | {_KEY}
        theirs: Lines = [
            (name, value)
            for name, value in scope["headers"]
            if name not in left_out and (b"_" not in name or name.replace(b"_", b"-") not in guarded)
        ]
        names = {name for name, _ in theirs}
        host: bytes = dict(scope["headers"]).get(b"host", b"")
        scheme: bytes = scope.get("scheme", "http").encode()
        came = [value for name, value in theirs if name == _FOR] + ([peer.encode()] if peer else [])
        lines = [(b"host", self._authority)]
        lines += [line for line in theirs if line[0] != _FOR]
        lines += [(_FOR, b", ".join(came))] if came else []  # in one line, which all read alike
        lines += [(name, value) for name, value in ((_PROTO, scheme), (_HOST, host)) if value and name not in names]
        lines.append((b"via", b"%b %b" % (scope.get("http_version", "1.1").encode(), self._name)))
        if claim is not None:
            lines.append((_KEY, b'"%b"' % claim.key("upstream").encode()))
            lines += [(b"onceward-attempt", b"%d" % claim.attempt), (b"onceward-fence", b"%d" % claim.fence)]
        size = len(first.get("body", b""))
        if first.get("more_body", False):
            sizes = [line for line in scope["headers"] if line[0] == _LENGTH]
            lines += sizes or [(b"transfer-encoding", b"chunked")]
        elif size or scope["method"] not in _WITHOUT_BODY:
            lines.append((_LENGTH, b"%d" % size))
        return lines


def answer_lines(status: int, headers: Lines) -> Lines:
    """Return the lines of an answer for the client; ``headers`` are the upstream's, the names in lower case."""
    left_out = _connection(headers) | ({_LENGTH} if status in {204, 304} else set())
    return [(name, value) for name, value in headers if name not in left_out]


def _connection(headers: Lines) -> frozenset[bytes]:
    """Return the headers that are about one connection, with those that Connection names (RFC 9110, section 7.6.1)."""
    values = [value for name, value in headers if name == b"connection"]
    return _HOPS.union(option.strip().lower() for value in values for option in value.split(b","))


_PART: Final = 1 << 16  # bytes of a head, and of a body that are passed on at once
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*").fullmatch  # RFC 9110, section 5.5; h11 takes more


_CONNECT_WITHIN: Final = 10.0  # seconds
# Seconds that an idle connection is used again. Servers keep them longer, so they close no connection just as a request goes out:
# nobody could tell then whether the request was carried out.
_IDLE: Final = 1.0


class TailReader(asyncio.StreamReader):
    """Gives what came before the connection broke off, and then its end. asyncio's own drops it.

    Attributes:
        unread: bytes that have come and were not read.
        error: why the connection broke off; None if it did not.
    """

    unread = 0
    error: Exception | None = None

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
        self.error = exc
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
        secure = self.writer.get_extra_info("ssl_object")
        if self.reader.error is not None or secure is None:
            return self.reader.error is not None
        try:
            secure.read(1)
        except ssl.SSLZeroReturnError:  # both sides have closed it
            return False
        except OSError:
            return True
        return False

    def close(self) -> None:
        """Close it at once: what is still to be sent is dropped."""
        self.writer.transport.abort()


class Upstream:
    """The application at an address. ``base`` stands before the path of each request; ``authority`` is its ``Host``."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = address.removeprefix("unix:") if address.startswith("unix:") else ""
        self._origin, parts = split_url("http://localhost" if self._socket else address)
        self._origin.host.encode("idna")  # raises UnicodeError, a ValueError, for a name that none can have
        if "?" in address:
            raise ValueError(f"upstream={shown_url(address)!r}: give a URL without a query")
        self._context = tls.context(tls.SSL_BUNDLE) if parts.scheme == "https" else None
        self._idle = IdleConnections[OpenStream](lambda stream: stream.is_quiet, idle=_IDLE)
        self.base, self.authority = parts.path.rstrip("/").encode(), self._origin.authority.encode()
        self.close = self._idle.close

    async def connect(self) -> "Link":
        """Return a connection. Raises OSError if the upstream takes none: nothing was sent."""
        return Link(self._idle.take() or await self._open(), self._idle)

    async def _open(self) -> OpenStream:
        loop, reader = asyncio.get_running_loop(), TailReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport: asyncio.Transport
        async with asyncio.timeout(_CONNECT_WITHIN):
            if self._socket:
                transport, _ = await loop.create_unix_connection(lambda: protocol, self._socket)
            else:
                host, port = self._origin.host, self._origin.port
                transport, _ = await loop.create_connection(lambda: protocol, host, port, ssl=self._context)
        return OpenStream(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


class Link:
    """A connection for one request. The answer can come before the request is sent; RemoteProtocolError says that it broke off."""

    def __init__(self, stream: OpenStream, idle: IdleConnections[OpenStream]) -> None:
        self._stream, self._idle, self.close = stream, idle, stream.close
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
                raise h11.RemoteProtocolError("the connection was broken off") from self._stream.reader.error
            self._http.receive_data(data)
        return event

    def end(self) -> None:
        """Keep the connection for another request, if this one and its answer have ended, and nothing has come unasked."""
        is_done = self._http.our_state is self._http.their_state is h11.DONE and not self._http.trailing_data[0]
        (self._idle.give if is_done and self._is_sure else OpenStream.close)(self._stream)
