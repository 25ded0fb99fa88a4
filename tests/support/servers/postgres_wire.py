"""A proxy before PostgreSQL that knows where a request and its reply end, and loses either."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import NamedTuple

_SSL, _GSS, _CANCEL = 80877103, 80877104, 80877102  # codes of messages without a type (protocol-message-formats)


class Asked(NamedTuple):
    """A request: its number, counted over all connections, and its messages. The first of a connection is its startup."""

    number: int
    content: bytes
    startup: bool = False


class Fault(NamedTuple):
    """What happens to a request.

    Attributes:
        lose_request: the client is cut off, and the server gets nothing.
        lose_reply: the client is cut off after the server has answered.
        half_reply: half of the reply is sent; then the client's connection is reset.
        late: the client is cut off now, and the server gets the request so many seconds later.
        linger: so many seconds pass until the server learns that a client is cut off. Its transaction stays open.
        freeze: neither gets anything more for so many seconds, or until the client gives up.
        delay: seconds before the reply is sent.
    """

    lose_request: bool = False
    lose_reply: bool = False
    half_reply: bool = False
    late: float | None = None
    linger: float = 0.0
    freeze: float = 0.0
    delay: float = 0.0


class Wire:
    """Forwards to a server, and fails as its ``rule`` says.

    Attributes:
        rule: called with each request; None lets it through.
        port: where it listens.
        server: the server's port; None cuts off whoever comes.
    """

    def __init__(self, port: int) -> None:
        self.rule: Callable[[Asked], Fault | None] = lambda asked: None
        self.server: int | None = port
        self._count = 0
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._ends: set[socket.socket] = set()
        self._closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        self._begin(self._accept)

    def close(self) -> None:
        """Cut all connections off."""
        self._closed.set()
        _shut(self._listener)
        with self._lock:
            ends = list(self._ends)
        for end in ends:
            _shut(end)
        for thread in list(self._threads):
            thread.join()
        self._listener.close()

    def _begin(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._begin(self._serve, self._listener.accept()[0])

    def _serve(self, client: socket.socket) -> None:
        if self.server is None:
            client.close()
            return
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.server)) as server:
            with self._lock:
                self._ends |= {client, server}
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                self._converse(client, server)
            finally:
                with self._lock:
                    self._ends -= {client, server}

    def _converse(self, client: socket.socket, server: socket.socket) -> None:
        asking, answering = _Reader(client), _Reader(server)
        startup = True
        while True:
            content = self._request(asking, client, server, startup=startup)
            if content is None:
                return
            code = struct.unpack("!I", content[4:8])[0] if startup else 0
            if code in {_SSL, _GSS}:
                client.sendall(b"N")
                continue
            if code == _CANCEL or content[:1] == b"X":
                server.sendall(content)
                return
            if not startup and asking.last == b"H":  # a Flush: its answers have no end of their own
                server.sendall(content)
                continue
            with self._lock:
                number, self._count = self._count, self._count + 1
            fault = self.rule(Asked(number, content, startup)) or Fault()
            if not self._passed(fault, content, client, server, answering):
                self._closed.wait(fault.linger)
                return
            startup = False

    def _passed(
        self, fault: Fault, content: bytes, client: socket.socket, server: socket.socket, answering: "_Reader"
    ) -> bool:
        """Pass a request and its reply on; return whether the conversation goes on."""
        if fault.freeze:
            client.settimeout(fault.freeze)
            while client.recv(65536):
                pass
            return False
        if fault.lose_request:
            _shut(client)
            return False
        if fault.late is not None:
            _shut(client)
            self._closed.wait(fault.late)
            server.sendall(content)
            answering.until(b"Z")
            return False
        server.sendall(content)
        if not (fault.lose_reply or fault.half_reply or fault.delay):
            return answering.until(b"Z", client) is not None  # also a notice before it comes at once
        reply = answering.until(b"Z")
        time.sleep(fault.delay)
        if fault.lose_reply or fault.half_reply or reply is None:
            if fault.half_reply and reply:
                client.sendall(reply[: len(reply) // 2])
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                _shut(client)
            return False
        client.sendall(reply)
        return True

    def _request(
        self, asking: "_Reader", client: socket.socket, server: socket.socket, *, startup: bool
    ) -> bytes | None:
        """Return the messages up to a Sync, a Query or a Terminate; None when either end is gone."""
        while not asking.buffer:
            ready = wait([client, server])
            if server in ready:  # it says something unasked, such as its end
                chunk = server.recv(65536)
                if not chunk:
                    return None
                client.sendall(chunk)
            elif not asking.fill():
                return None
        return asking.untyped() if startup else asking.until(b"SQXH")


class _Reader:
    """Reads whole messages from a socket."""

    def __init__(self, end: socket.socket) -> None:
        self.buffer = self.last = b""  # what was received, and the kind of the last message
        self._end = end

    def fill(self) -> bool:
        chunk = self._end.recv(65536)
        self.buffer += chunk
        return bool(chunk)

    def untyped(self) -> bytes | None:
        return self._taken(0)

    def until(self, kinds: bytes, target: socket.socket | None = None) -> bytes | None:
        """Return the messages up to one of these kinds, also sent to ``target`` as they come; None at the end."""
        parts = []
        while (message := self._taken(1)) is not None:
            parts.append(message)
            self.last = message[:1]
            if target is not None:
                target.sendall(message)
            if message[:1] in kinds:
                return b"".join(parts)
        return None

    def _taken(self, at: int) -> bytes | None:
        """Return the next message, whose length is at byte ``at``."""
        while len(self.buffer) < at + 4 or len(self.buffer) < at + struct.unpack_from("!I", self.buffer, at)[0]:
            if not self.fill():
                return None
        end = at + struct.unpack_from("!I", self.buffer, at)[0]
        message, self.buffer = self.buffer[:end], self.buffer[end:]
        return message


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
