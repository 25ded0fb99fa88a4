"""A proxy in a process of its own: forwards whole requests after a delay, or counts them and what they consumed.

Run: python benchmarks/delay_proxy.py PORT SECONDS [count | answer | turns]

Prints its own port, and ends when its standard input ends. The delay is added once to each request, whatever its size, and
not to opening a connection; each connection has one of its own to the server at PORT. With ``count`` every request is sent
on with ``ReturnConsumedCapacity``, and ``GET /tally`` answers with what there was since the last time. With ``answer`` the
server is not asked: after the delay comes ``{}``, as to a write that was made, for measuring clients without a server that
takes half of the machine. With ``turns`` the bytes are of any protocol, and are passed on as they come; a request is counted
whenever the client speaks after the server has spoken: one round trip.

A bare epoll loop: asyncio would take twice the time of a machine whose two cores the client and the server need as well.
"""

import json
import math
import select
import socket
import subprocess
import sys
import time
import urllib.request
from collections import deque
from email.utils import formatdate
from pathlib import Path
from typing import NamedTuple

READS = ("GetItem", "PartiQLSelect", "Query", "Scan")
REFUSED_WRITE = 1.0  # write units of a refused conditional write of an item below 1 KB


class Seen(NamedTuple):
    """What the counting proxy saw."""

    requests: int
    reads: float
    writes: float
    refused: float
    actions: dict[str, int]


class DelayProxy:
    """The proxy, started in front of the server at ``port``."""

    def __init__(self, port: int, delay: float = 0.0, mode: str = "") -> None:
        command = [sys.executable, str(Path(__file__)), str(port), str(delay), mode]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"
        self.postgres = f"postgresql://postgres@127.0.0.1:{self.port}/test"

    def tally(self) -> Seen:
        """Return what came since the last time."""
        with urllib.request.urlopen(f"{self.url}/tally") as reply:
            return Seen(**json.load(reply))

    def stop(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


class Pair:
    """A client's connection and the one to the server that belongs to it; with no ``port`` that leads nowhere."""

    def __init__(self, client: socket.socket, port: int | None) -> None:
        self.client = client
        self.server = socket.socket() if port is None else socket.create_connection(("127.0.0.1", port))
        for one in (self.client, self.server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request = b""
        self.reply = b""
        self.action = ""
        self.answered = True  # so the client's next bytes begin a round trip


class Counter:
    """Rewrites requests so that they are answered with what they consume, and adds that up."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.requests, self.reads, self.writes, self.refused = 0, 0.0, 0.0, 0.0
        self.actions: dict[str, int] = {}

    def asking(self, pair: Pair, request: bytes) -> bytes:
        """Return the request with ``ReturnConsumedCapacity`` in it; the test server checks no signatures."""
        head, _, content = request.partition(b"\r\n\r\n")
        action = header(head, b"x-amz-target").rpartition(b".")[2].decode()
        pair.action = "PartiQLSelect" if b'"SELECT * FROM' in content else action
        body = json.dumps(json.loads(content) | {"ReturnConsumedCapacity": "TOTAL"}).encode()
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length:")]
        return b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"", body])

    def answered(self, pair: Pair, reply: bytes) -> None:
        """Add up what an answer tells."""
        _, _, content = reply.partition(b"\r\n\r\n")
        body = json.loads(content)
        told = body.get("ConsumedCapacity") or []
        units = sum(one["CapacityUnits"] for one in (told if isinstance(told, list) else [told]))
        if pair.action in READS:
            self.reads += units
        else:
            self.writes += units
            self.refused += REFUSED_WRITE * ("ConditionalCheckFailed" in body.get("__type", ""))
            self.refused += REFUSED_WRITE * sum("Error" in one for one in body.get("Responses", []))
        self.requests += 1
        self.actions[pair.action] = self.actions.get(pair.action, 0) + 1

    def tally(self) -> bytes:
        """Return the sums as an answer, and begin anew."""
        body = json.dumps(Seen(self.requests, self.reads, self.writes, self.refused, self.actions)._asdict()).encode()
        self.clear()
        return b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def header(head: bytes, name: bytes) -> bytes:
    start = head.lower().find(b"\r\n" + name + b":")
    return b"" if start < 0 else head[start + len(name) + 3 :].partition(b"\r\n")[0].strip()


def is_whole(message: bytes) -> bool:
    end = message.find(b"\r\n\r\n")
    return end >= 0 and len(message) >= end + 4 + int(header(message[:end], b"content-length") or 0)


def made() -> bytes:
    """Return the answer to a write that was made, with the server's time."""
    head = "HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: 2\r\nDate: "
    return f"{head}{formatdate(usegmt=True)}\r\n\r\n{{}}".encode()


class Server:
    """The proxy's loop.

    Args:
        port: of the server behind it.
        delay: seconds.
        mode: "", "count", "answer" or "turns".
    """

    def __init__(self, port: int, delay: float, mode: str) -> None:
        self._port = None if mode == "answer" else port
        self._delay = delay
        self._counter = Counter() if mode in {"count", "turns"} else None
        self._turns = mode == "turns"
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._epoll = select.epoll()
        self._pairs: dict[int, tuple[Pair, bool]] = {}  # and whether this end of it is the client's
        self._later: deque[tuple[float, Pair, bytes]] = deque()  # in order, for every delay is the same
        self._answer, self._answer_until = b"", 0.0

    def run(self) -> None:
        """Print the port, and forward until the standard input ends."""
        print(self._listener.getsockname()[1], flush=True)
        for number in (self._listener.fileno(), sys.stdin.fileno()):
            self._epoll.register(number, select.EPOLLIN)
        later = self._later
        while True:
            for number, _ in self._epoll.poll(max(0.0, later[0][0] - time.perf_counter()) if later else None):
                if number == sys.stdin.fileno():
                    return
                if number == self._listener.fileno():
                    self._accept()
                elif (found := self._pairs.get(number)) is not None:
                    self._read(*found)
            self._send_due()

    def _accept(self) -> None:
        pair = Pair(self._listener.accept()[0], self._port)
        for one, asks in ((pair.client, True), (pair.server, False)):
            if asks or self._port is not None:
                self._pairs[one.fileno()] = pair, asks
                self._epoll.register(one.fileno(), select.EPOLLIN)

    def _read(self, pair: Pair, asks: bool) -> None:
        try:
            data = (pair.client if asks else pair.server).recv(65536)
            if not data:
                self._drop(pair)
            elif self._turns:
                self._passed(pair, data, asks)
            elif asks:
                self._asked(pair, data)
            else:
                self._answered(pair, data)
        except OSError:
            self._drop(pair)

    def _passed(self, pair: Pair, data: bytes, asks: bool) -> None:
        assert self._counter is not None
        if not asks:
            pair.answered = True
            pair.client.sendall(data)
        elif data.startswith(b"GET /tally"):
            pair.client.sendall(self._counter.tally())
        else:
            self._counter.requests += pair.answered
            pair.answered = False
            self._later.append((time.perf_counter() + self._delay, pair, data))

    def _asked(self, pair: Pair, data: bytes) -> None:
        pair.request += data
        if not is_whole(pair.request):
            return
        request, pair.request = pair.request, b""
        if self._counter is not None:
            if request.startswith(b"GET /tally"):
                pair.client.sendall(self._counter.tally())
                return
            request = self._counter.asking(pair, request)
        self._later.append((time.perf_counter() + self._delay, pair, request))

    def _answered(self, pair: Pair, data: bytes) -> None:
        if self._counter is not None:
            pair.reply += data
            if not is_whole(pair.reply):
                return
            data, pair.reply = pair.reply, b""
            self._counter.answered(pair, data)
        pair.client.sendall(data)

    def _send_due(self) -> None:
        if self._port is None and time.time() >= self._answer_until:
            self._answer, self._answer_until = made(), math.floor(time.time()) + 1.0
        now = time.perf_counter()
        while self._later and self._later[0][0] <= now:
            _, pair, request = self._later.popleft()
            try:
                if self._port is None:
                    pair.client.sendall(self._answer)
                else:
                    pair.server.sendall(request)
            except OSError:
                self._drop(pair)

    def _drop(self, pair: Pair) -> None:
        for one in (pair.client, pair.server):
            self._pairs.pop(one.fileno(), None)
            one.close()


if __name__ == "__main__":
    Server(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]).run()
