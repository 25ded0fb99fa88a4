"""A proxy before MariaDB that knows where a request and its reply end, and loses either.

It is the proxy before PostgreSQL (servers/postgres_wire.py), with the other protocol's messages.
"""

import socket
import struct
from multiprocessing.connection import wait

from servers.postgres_wire import Asked, Fault, Wire

__all__ = ["Asked", "Fault", "MysqlWire"]

_MORE = 8  # in the status of a result: another one follows
_EOF, _ERROR, _OK, _QUIT = 0xFE, 0xFF, 0x00, 0x01
_DEPRECATE_EOF = 1 << 24


class MysqlWire(Wire):
    """As :class:`Wire`, for MariaDB. A login is passed on as one request, the first of its connection."""

    def _converse(self, client: socket.socket, server: socket.socket) -> None:
        asking, answering = _Packets(client), _Packets(server)
        greeting = answering.packet()
        if greeting is None:
            return
        client.sendall(greeting)
        startup = True
        while True:
            content = asking.packet() if self._wait(asking, client, server) else None
            if content is None:
                return
            if not startup and content[4] == _QUIT:
                server.sendall(content)
                return
            if startup:
                answering.short = bool(struct.unpack_from("<I", content, 4)[0] & _DEPRECATE_EOF)
            answering.login = startup
            with self._lock:
                number, self._count = self._count, self._count + 1
            fault = self.rule(Asked(number, content[4:], startup)) or Fault()
            if not self._passed(fault, content, client, server, answering):
                self._closed.wait(fault.linger)
                return
            startup = False

    def _wait(self, asking: "_Packets", client: socket.socket, server: socket.socket) -> bool:
        while not asking.buffer:
            ready = wait([client, server])
            if server in ready:  # it says something unasked, such as its end
                chunk = server.recv(65536)
                if not chunk:
                    return False
                client.sendall(chunk)
            elif not asking.fill():
                return False
        return True


class _Packets:
    """Reads whole packets and replies from a socket."""

    def __init__(self, end: socket.socket) -> None:
        self.buffer = b""
        self.short = False  # a result has no EOF after its columns
        self.login = False  # whether the reply is to a login
        self._end = end

    def fill(self) -> bool:
        chunk = self._end.recv(65536)
        self.buffer += chunk
        return bool(chunk)

    def packet(self) -> bytes | None:
        """Return the next packet with its header, and those that continue it; None at the end."""
        whole = b""
        while True:
            while len(self.buffer) < 4 or len(self.buffer) < 4 + int.from_bytes(self.buffer[:3], "little"):
                if not self.fill():
                    return None
            length = int.from_bytes(self.buffer[:3], "little")
            whole += self.buffer[: 4 + length]
            self.buffer = self.buffer[4 + length :]
            if length < 0xFFFFFF:
                return whole

    def until(self, kinds: bytes, target: socket.socket | None = None) -> bytes | None:
        """Return a whole reply, also sent to ``target`` as it comes; None at the end."""
        parts: list[bytes] = []

        def taken() -> bytes | None:
            packet = self.packet()
            if packet is not None:
                parts.append(packet)
                if target is not None:
                    target.sendall(packet)
            return packet

        while True:
            packet = taken()
            if packet is None:
                return None
            if packet[4] == _ERROR:
                return b"".join(parts)
            if packet[4] == _OK or (self.login and packet[4] == _EOF):
                if self.login or not _status_of_ok(packet[4:]) & _MORE:
                    return b"".join(parts)
                continue
            if not self.short:  # columns, and their end
                while (packet := taken()) is not None and not _ends(packet):
                    pass
            while (packet := taken()) is not None and not _ends(packet):
                pass
            if packet is None:
                return None
            if packet[4] == _ERROR:
                return b"".join(parts)
            status = _status_of_ok(packet[4:]) if self.short else struct.unpack_from("<H", packet, 7)[0]
            if not status & _MORE:
                return b"".join(parts)


def _ends(packet: bytes) -> bool:
    """Return whether a packet ends columns or rows."""
    return packet[4] == _ERROR or (packet[4] == _EOF and len(packet) < 0xFFFFFF)


def _status_of_ok(content: bytes) -> int:
    """Return the server's status in an OK packet, after two numbers of varying length."""
    at = 1
    for _ in range(2):
        at += {0xFC: 3, 0xFD: 4, 0xFE: 9}.get(content[at], 1)
    status: int = struct.unpack_from("<H", content, at)[0]
    return status
