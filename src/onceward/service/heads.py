"""The server's protocol: a request whose head never comes, or that is framed ambiguously, ends its connection.

uvicorn keeps connections without a head for ever, until no file descriptor is left for others.
"""

import asyncio
import contextlib
import re
from typing import Any, ClassVar, Final

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

_BAD_LINE: Final = re.compile(rb"(?<!\r)\n|\r(?!\n)|\n[ \t]").search
_LENGTH: Final = re.compile(rb"\ncontent-length:([^\r\n]*)", re.IGNORECASE).findall
_CODING: Final = re.compile(rb"\ntransfer-encoding:", re.IGNORECASE).search
_VERSION: Final = re.compile(rb"[^\r\n]* HTTP/1\.1\r\n").match


class StrictConnection(h11.Connection):
    """The server's side of a connection.

    h11 takes lines that end with a bare LF, folded lines, equal lengths twice, and Transfer-Encoding beside Content-Length
    or in HTTP/1.0. This refuses them.
    """

    _chunked = False  # whether the body of the request that is read has chunks
    _last = b""  # a CR that was read without its LF

    def next_event(self) -> Any:
        """As h11 says. Raises RemoteProtocolError also for an ambiguous request."""
        if self.their_state is not h11.IDLE and not (self._chunked and self.their_state is h11.SEND_BODY):
            return super().next_event()
        before = self.trailing_data[0]
        event = super().next_event()
        read = before[: len(before) - len(self.trailing_data[0])]
        if isinstance(event, h11.Request):
            self._check_head(read)
        elif isinstance(event, h11.Data):
            self._check_lines(read[: len(read) - len(event.data)])
        else:
            self._check_lines(read)
        return event

    def _check_head(self, head: bytes) -> None:
        lengths = _LENGTH(head)
        self._chunked, self._last = _CODING(head) is not None, b""
        if _BAD_LINE(head):
            raise h11.RemoteProtocolError("a line of the head is folded, or does not end with CR and LF")
        if len(lengths) > 1 or b"," in b"".join(lengths):
            raise h11.RemoteProtocolError("the request has more than one Content-Length")
        if self._chunked and lengths:
            raise h11.RemoteProtocolError("the request has both Transfer-Encoding and Content-Length")
        if self._chunked and not _VERSION(head):
            raise h11.RemoteProtocolError("the request has Transfer-Encoding, which only HTTP/1.1 knows")

    def _check_lines(self, lines: bytes) -> None:
        """Check the lines between chunks, or a part of them."""
        lines = self._last + lines
        self._last = lines[-1:] if lines.endswith(b"\r") else b""
        if _BAD_LINE(lines.removesuffix(b"\r")):
            raise h11.RemoteProtocolError("a line between chunks is folded, or does not end with CR and LF")


class TimedHeads(H11Protocol):
    """HTTP/1.1 by h11. It closes a connection whose next request does not begin in time.

    httptools drops the body of a request that offers an upgrade, as each of Java's HttpClient does.

    Attributes:
        within: seconds. It looks as often, so it can take twice as long.
    """

    within: ClassVar[float] = 30.0
    _since: float | None = None  # when it began to wait for a head, on the loop's clock
    _timer: asyncio.TimerHandle | None = None
    _is_refused = False  # whether a request was refused for its framing

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = StrictConnection(h11.SERVER)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """As asyncio says."""
        super().connection_made(transport)
        self._note()
        self._check()

    def data_received(self, data: bytes) -> None:
        """As asyncio says. After a refusal nothing more is read."""
        if not self._is_refused:
            super().data_received(data)
            self._note()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that cannot be read, unless its answer has begun, and end the connection."""
        self._is_refused = True
        msg = "This request is not valid (RFC 9112). It is refused, and this connection ends."
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            with contextlib.suppress(h11.LocalProtocolError):  # the answer to a HEAD has no body
                super().send_400_response(msg)
        self.transport.close()

    def on_response_complete(self) -> None:
        """As uvicorn says."""
        super().on_response_complete()
        self._note()

    def connection_lost(self, exc: Exception | None) -> None:
        """As asyncio says."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def _note(self) -> None:
        """Note whether it waits, and since when. Bytes of a head that is not complete do not begin anew."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._since = None
        elif self._since is None:
            self._since = self.loop.time()

    def _check(self) -> None:
        """Look now and then, which costs less than a timer for each request."""
        if self._since is not None and self.loop.time() - self._since >= self.within:
            self.transport.close()
        else:
            self._timer = self.loop.call_later(self.within, self._check)
