"""The server's protocol: a request whose head never comes, or that is framed ambiguously, ends its connection.

uvicorn keeps connections without a head for ever, until no file descriptor is left for others.
"""

import asyncio
import contextlib
from typing import Any, ClassVar

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from onceward.service.framing import StrictConnection


class TimedHeads(H11Protocol):
    """HTTP/1.1 by h11. It closes a connection whose next request does not begin in time.

    httptools drops the body of a request that offers an upgrade, as each of Java's HttpClient does.

    Attributes:
        within: seconds. It looks as often, so it can take twice as long.
    """

    within: ClassVar[float] = 30.0
    _since: float | None = None  # when it began to wait for a head, on the loop's clock
    _timer: asyncio.TimerHandle | None = None
    _refused = False  # whether a request was refused for its framing

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
        if not self._refused:
            super().data_received(data)
            self._note()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that cannot be read, unless its answer has begun, and end the connection."""
        self._refused = True
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
