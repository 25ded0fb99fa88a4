"""Where the upstream is, and the connections to it."""

import asyncio
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from onceward.core.arguments import check_type
from onceward.core.urls import shown_url
from onceward.proxy.connection import Connection
from onceward.wire import tls
from onceward.wire.endpoints import Origin

if TYPE_CHECKING:
    import ssl

_PORTS: Final = {"http": 80, "https": 443}
_UNIX: Final = "unix:"
_FOREIGN: Final = re.compile(r"[^!-~]|[?#]")
_CONNECT_WITHIN: Final = 10.0  # seconds
# Seconds that an idle connection is used again. Servers keep them longer, so they close no connection just as a request goes out:
# nobody could tell then whether the request was carried out.
_IDLE: Final = 1.0
_MOST_IDLE: Final = 64


class Upstream:
    """The application behind the proxy.

    Args:
        address: an ``http://`` or ``https://`` URL, whose path stands before the path of each request; or ``unix:`` and the path of
            a socket. The certificate of ``https://`` is verified. SSL_CERT_FILE can name a file of trusted ones.

    Attributes:
        base: the path that stands before the path of each request.
        authority: its ``Host``.

    Raises:
        ValueError: the address is not valid.
        StoreError: the file of certificates cannot be read.
    """

    def __init__(self, address: str) -> None:
        check_type("Proxy(upstream)", address, str, "a URL such as http://127.0.0.1:8000")
        self._origin: Origin | None = None
        self._socket = address.removeprefix(_UNIX) if address.startswith(_UNIX) else ""
        self._idle: list[Connection] = []
        self.address, self.base, self.authority = address, b"", b"localhost"
        if self._socket:
            return
        try:
            parts = urlsplit(address)
            port = parts.port
            (parts.hostname or "").encode("idna")
        except ValueError as error:
            raise ValueError(f"upstream={shown_url(address)!r} is not a URL") from error
        host = parts.hostname or ""
        if parts.scheme not in _PORTS or not host or parts.username is not None or _FOREIGN.search(address):
            raise ValueError(
                f"upstream={shown_url(address)!r}: give a URL such as http://127.0.0.1:8000, without a user, a query and a fragment, or "
                "unix:/run/app.sock"
            )
        self._origin = Origin(parts.scheme, host, _PORTS[parts.scheme] if port is None else port)
        if parts.scheme == "https":
            tls.context(tls.SSL_BUNDLE)  # a file that cannot be read is told now
        self.base = parts.path.rstrip("/").encode()
        self.authority = self._origin.authority.encode()

    async def connection(self) -> Connection:
        """Return a connection for one request.

        Raises:
            OSError: the upstream took no connection. Nothing was sent.
        """
        while self._idle:
            connection = self._idle.pop()
            if connection.is_free and connection.idle < _IDLE:
                return connection
            connection.close()
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_CONNECT_WITHIN):
            if self._origin is None:
                return (await loop.create_unix_connection(Connection, self._socket))[1]
            scheme, host, port = self._origin
            context: ssl.SSLContext | None = tls.context(tls.SSL_BUNDLE) if scheme == "https" else None
            return (await loop.create_connection(Connection, host, port, ssl=context))[1]

    def keep(self, connection: Connection) -> None:
        """Take back a connection whose answer was read to its end."""
        if connection.is_free and len(self._idle) < _MOST_IDLE:
            connection.rest()
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()
