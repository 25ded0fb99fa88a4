"""HTTP/1.1 for all programs of onceward that serve: strict about where a request ends, and about heads that never come.

A program and the proxy in front of it must not disagree on where a request ends: what one reads as a body would be the other's
next request. So a framing that can be read in two ways is refused, and the connection ends after the refusal (RFC 9112, 6.1 and 11.2).
h11 is lenient where this file is not. httptools drops the body of a request that offers an upgrade, as each of Java's HttpClient does.
"""

import asyncio
import re
from typing import Any, ClassVar, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

_END: Final = b"\r\n\r\n"
_HEAD_LIMIT: Final = 1 << 16  # bytes of a head, or of a chunk's line
# A line that ends without CR or goes on after its end (obs-fold, RFC 9112, 5.2), a CR that ends no line.
_LOOSE: Final = re.compile(rb"(?<!\r)\n|\r[^\n]|\n[\t ]").search
_LENGTHS: Final = re.compile(rb"^content-length[\t ]*:[^,\r\n]*", re.IGNORECASE | re.MULTILINE).findall
_LISTED: Final = re.compile(rb"^content-length[\t ]*:[^\r\n]*,", re.IGNORECASE | re.MULTILINE).search


class _StrictConnection(h11.Connection):
    """A connection of h11 that refuses what can be read in two ways."""

    def next_event(self) -> "type[h11.NEED_DATA | h11.PAUSED] | h11.Event":
        """As h11 says. RemoteProtocolError: the request must be refused, and the connection closed."""
        if self.their_state is h11.IDLE:
            data = self.trailing_data[0]
            end = data.find(_END)
            head = data if end < 0 else data[: end + 2]
            if _LOOSE(head):
                raise h11.RemoteProtocolError("a line of the head does not end with CR LF, or goes on in the next one")
            if len(_LENGTHS(head)) > 1 or _LISTED(head):
                raise h11.RemoteProtocolError("the request has several Content-Lengths")
        event = super().next_event()
        if type(event) is h11.Request:
            names = [name for name, _ in event.headers]
            if b"transfer-encoding" in names and (b"content-length" in names or event.http_version < b"1.1"):
                raise h11.RemoteProtocolError("the request has Transfer-Encoding with Content-Length or HTTP/1.0")
        return event


class StrictHttp(H11Protocol):
    """HTTP/1.1 under uvicorn. It closes a connection whose next request does not begin in time.

    Attributes:
        within: seconds. It looks as often, so it can take twice as long.
    """

    within: ClassVar[float] = 30.0
    _since: float | None = None  # when it began to wait for a head, on the loop's clock
    _timer: asyncio.TimerHandle | None = None

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.conn = _StrictConnection(h11.SERVER, self.config.h11_max_incomplete_event_size or _HEAD_LIMIT)

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be read, and take no more bytes."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            super().send_400_response(msg)
        else:  # the answer has begun
            self.transport.close()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """As asyncio says."""
        super().connection_made(transport)
        self._note()
        self._check()

    def data_received(self, data: bytes) -> None:
        """As asyncio says."""
        if not self.transport.is_closing():
            super().data_received(data)
            self._note()

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
