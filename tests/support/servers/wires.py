"""What stands before servers and loses requests and replies: gates for any protocol, wires that know a request of PostgreSQL or MySQL."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import NamedTuple

_SSL, _GSS, _CANCEL = 80877103, 80877104, 80877102  # codes of messages without a type (protocol-message-formats)
_MORE = 8  # in the status of MySQL's result: another one follows
_EOF, _ERROR, _OK, _QUIT = 0xFE, 0xFF, 0x00, 0x01
_DEPRECATE_EOF = 1 << 24
_FOREVER = 3600.0  # seconds


class Asked(NamedTuple):
    """A request: its number, counted over all connections, and its messages. The first of a connection is its startup."""

    number: int
    content: bytes
    startup: bool = False


class Fault(NamedTuple):
    """What happens to a request. A client that is cut off hears nothing more; the server learns of that after ``linger`` seconds."""

    lose_request: bool = False
    lose_reply: bool = False
    half_reply: bool = False  # and then the client's connection is reset
    late: float | None = None  # the client is cut off now, and the server gets the request so many seconds later
    linger: float = 0.0  # meanwhile its transaction stays open
    freeze: float = 0.0  # neither gets anything more for so many seconds, or until the client gives up
    delay: float = 0.0  # before the reply is sent


class Gate:
    """Forwards bytes to a server. ``loses`` is asked for each chunk of a reply, whether to cut the client off in its place."""

    def __init__(self, port: int) -> None:
        self.loses: Callable[[], bool] = lambda: False
        self.server: int | None = port  # None cuts off whoever comes
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._ends: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        self._begin(self._accept)

    def turn(self, port: int | None) -> None:
        """Cut off all, and forward to another server."""
        self.server = port
        self._cut()

    def close(self) -> None:
        self.server = None
        _shut(self._listener)
        self._cut()
        for thread in list(self._threads):
            thread.join(10)
        self._listener.close()

    def _cut(self) -> None:
        with self._lock:
            ends = list(self._ends)
        for end in ends:
            _shut(end)

    def _begin(self, target: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

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
        back = self._begin(self._pump, server, client, self.loses)
        self._pump(client, server, lambda: False)
        back.join()

    def _pump(self, source: socket.socket, target: socket.socket, loses: Callable[[], bool]) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                if loses():
                    break
                target.sendall(chunk)
        for end in (source, target):
            _shut(end)


class _Talk:
    """The requests of a connection, and their replies; None at their end. A reply is also sent to its ``target`` as it comes."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.asking, self.answering = _Reader(client), _Reader(server)

    def _asks(self) -> bool:
        """Wait until the client asks for something; return False if either end is gone."""
        while not self.asking.buffer:
            ready = wait([self.client, self.server])
            if self.server in ready:  # it says something unasked, such as its end
                chunk = self.server.recv(65536)
                if not chunk:
                    return False
                self.client.sendall(chunk)
            elif not self.asking.fill():
                return False
        return True


class _PostgresTalk(_Talk):
    def request(self, *, startup: bool) -> bytes | None:
        """Return the messages up to a Sync or a Query."""
        while self._asks():
            content = self.asking.message(0) if startup else self.asking.until(b"SQXH")
            code = struct.unpack("!I", content[4:8])[0] if startup and content else 0
            if code in {_SSL, _GSS}:
                self.client.sendall(b"N")
            elif content and (code == _CANCEL or content[:1] == b"X"):
                self.server.sendall(content)
                return None
            elif content and not startup and self.asking.last == b"H":  # a Flush: its answers have no end of their own
                self.server.sendall(content)
            else:
                return content
        return None

    def reply(self, target: socket.socket | None = None) -> bytes | None:
        return self.answering.until(b"Z", target)


class _MysqlTalk(_Talk):
    _short = False  # a result has no EOF after its columns
    _login = True

    def request(self, *, startup: bool) -> bytes | None:
        if startup:
            greeting = self.answering.packet()
            if greeting is None:
                return None
            self.client.sendall(greeting)
        content = self.asking.packet() if self._asks() else None
        if content is None:
            return None
        if startup:
            self._short = bool(struct.unpack_from("<I", content, 4)[0] & _DEPRECATE_EOF)
        elif content[4] == _QUIT:
            self.server.sendall(content)
            return None
        self._login = startup
        return content

    def reply(self, target: socket.socket | None = None) -> bytes | None:
        parts: list[bytes] = []

        def taken() -> bytes:
            packet = self.answering.packet()
            if packet is None:
                raise EOFError
            parts.append(packet)
            if target is not None:
                target.sendall(packet)
            return packet

        try:
            while self._follows(taken):
                pass
        except EOFError:
            return None
        return b"".join(parts)

    def _follows(self, taken: Callable[[], bytes]) -> bool:
        """Take a result; return whether another one follows."""
        packet = taken()
        if packet[4] == _ERROR:
            return False
        if packet[4] == _OK or (self._login and packet[4] == _EOF):
            return not self._login and bool(_status_of_ok(packet[4:]) & _MORE)
        for _ in range(1 if self._short else 2):  # columns and their end, and rows
            while not _ends(packet := taken()):
                pass
        if packet[4] == _ERROR:
            return False
        status = _status_of_ok(packet[4:]) if self._short else struct.unpack_from("<H", packet, 7)[0]
        return bool(status & _MORE)


class _Reader:
    def __init__(self, end: socket.socket) -> None:
        self.buffer = self.last = b""  # what was received, and the kind of PostgreSQL's last message
        self._end = end

    def fill(self) -> bool:
        chunk = self._end.recv(65536)
        self.buffer += chunk
        return bool(chunk)

    def until(self, kinds: bytes, target: socket.socket | None = None) -> bytes | None:
        """Return the messages of PostgreSQL up to one of these kinds, also sent to ``target`` as they come; None at the end."""
        parts = []
        while (message := self.message(1)) is not None:
            parts.append(message)
            self.last = message[:1]
            if target is not None:
                target.sendall(message)
            if message[:1] in kinds:
                return b"".join(parts)
        return None

    def message(self, at: int) -> bytes | None:
        """Return PostgreSQL's next message, whose length is at byte ``at``."""
        while len(self.buffer) < at + 4 or len(self.buffer) < at + struct.unpack_from("!I", self.buffer, at)[0]:
            if not self.fill():
                return None
        return self._cut(at + struct.unpack_from("!I", self.buffer, at)[0])

    def packet(self) -> bytes | None:
        """Return MySQL's next packet with its header, and those that continue it; None at the end."""
        whole = b""
        while True:
            while len(self.buffer) < 4 or len(self.buffer) < 4 + int.from_bytes(self.buffer[:3], "little"):
                if not self.fill():
                    return None
            length = int.from_bytes(self.buffer[:3], "little")
            whole += self._cut(4 + length)
            if length < 0xFFFFFF:
                return whole

    def _cut(self, end: int) -> bytes:
        message, self.buffer = self.buffer[:end], self.buffer[end:]
        return message


def _ends(packet: bytes) -> bool:
    """Return whether a packet of MySQL ends columns or rows."""
    return packet[4] == _ERROR or (packet[4] == _EOF and len(packet) < 0xFFFFFF)


def _status_of_ok(content: bytes) -> int:
    """Return the server's status in an OK packet, after two numbers of varying length."""
    at = 1
    for _ in range(2):
        at += {0xFC: 3, 0xFD: 4, 0xFE: 9}.get(content[at], 1)
    status: int = struct.unpack_from("<H", content, at)[0]
    return status


class Wire(Gate):
    """Forwards to a PostgreSQL server, and fails as its ``rule`` says of each request; None lets it through."""

    _talk: type[_Talk] = _PostgresTalk

    def __init__(self, port: int) -> None:
        self.rule: Callable[[Asked], Fault | None] = lambda asked: None
        self._count = 0
        self._released = threading.Event()
        super().__init__(port)

    def release(self) -> None:
        """Let the server see that its clients are gone."""
        self._released.set()

    def close(self) -> None:
        self.release()
        super().close()

    def _converse(self, client: socket.socket, server: socket.socket) -> None:
        talk, startup = self._talk(client, server), True
        while True:
            content = talk.request(startup=startup)
            if content is None:
                return
            with self._lock:
                number, self._count = self._count, self._count + 1
            fault = self.rule(Asked(number, content, startup)) or Fault()
            if not self._passed(fault, content, talk):
                self._released.wait(fault.linger)
                return
            startup = False

    def _passed(self, fault: Fault, content: bytes, talk: _Talk) -> bool:
        """Pass a request and its reply on; return whether the conversation goes on."""
        client, server = talk.client, talk.server
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
            self._released.wait(fault.late)
            server.sendall(content)
            talk.reply()
            return False
        server.sendall(content)
        if not (fault.lose_reply or fault.half_reply or fault.delay):
            return talk.reply(client) is not None  # also a notice before it comes at once
        reply = talk.reply()
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


class MysqlWire(Wire):
    """As :class:`Wire`, for MariaDB. A login is passed on as one request, the first of its connection."""

    _talk = _MysqlTalk


PLANS = {
    "drop": Fault(lose_reply=True),
    "delay": Fault(late=1.5),
    "swallow": Fault(lose_request=True),
    "hold": Fault(lose_request=True, linger=_FOREVER),  # until release()
    "freeze": Fault(freeze=_FOREVER),
}


class CommitProxy:
    """Passes everything on but the next COMMIT when ``plan`` is set: to one of ``PLANS``."""

    def __init__(self, wire: Wire) -> None:
        self.plan: str | None = None
        self.commits = 0
        wire.rule = self._rule
        self.port, self.release, self.close = wire.port, wire.release, wire.close

    def _rule(self, asked: Asked) -> Fault | None:
        if self.plan is None or b"COMMIT" not in asked.content:
            return None
        plan, self.plan = self.plan, None
        self.commits += 1
        return PLANS[plan]


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
