"""Requests over keep-alive connections to uvicorn, one process for each middleware: latency, CPU and requests per second.

The clients are in this process, and send prepared bytes over plain sockets. The server's CPU is what it says of itself before
and after. One request at a time gives the latency; CONNECTIONS at a time give the requests per second.
"""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from http_calls import AGAIN, FIRST, KINDS, PASSED, scope_of
from http_peers import BARE, BODY, OURS, PEERS, SLOW
from measure import Cost, interleaved, table
from servers.needs import free_port, listens

REQUESTS, ROUNDS, CONNECTIONS = 100, 7, 16
AT_ONCE = 200  # requests of a round of CONNECTIONS at a time
SLOW_REQUESTS, SLOW_ROUNDS = 5, 3
SHARE = 0.1  # the goal: of the handler's time, for a duplicate
ONE, MANY = "one at a time", "at once"


class Server:
    """Uvicorn with one middleware in a process of its own.

    Args:
        name: one of PEERS, or BARE.
        ledger: as in :func:`http_peers.guarded`.
    """

    def __init__(self, name: str, ledger: str) -> None:
        self.port = free_port()
        self._lasts = ledger != "memory:"
        script = Path(__file__).with_name("http_server.py")
        self._process = subprocess.Popen([sys.executable, script, name, ledger, str(self.port)])
        assert listens(self.port, self._process), f"uvicorn did not start with {name}"
        self._connection = Connection(self.port)

    def renew(self) -> None:
        """Take a new ledger, if it is in memory."""
        if not self._lasts:
            self._connection.ask(b"GET /renew HTTP/1.1\r\nHost: localhost\r\n\r\n")

    def spent(self) -> float:
        """Return the seconds of CPU that the process has taken."""
        return float(self._connection.ask(b"GET /cpu HTTP/1.1\r\nHost: localhost\r\n\r\n")[1])

    def stop(self) -> None:
        """Stop the process, and wait for that."""
        self._connection.close()
        self._process.terminate()
        self._process.wait(10)


class Connection:
    """A connection that is kept; one request after the other."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> tuple[bytes, bytes]:
        """Send a request; return the head and the body of its answer."""
        self._socket.sendall(request)
        got = b""
        while (end := _end(got)) is None or len(got) < end:
            part = self._socket.recv(65536)
            assert part, "the server has closed the connection"
            got += part
        head, _, body = got.partition(b"\r\n\r\n")
        return head, body

    def close(self) -> None:
        """Close it."""
        self._socket.close()


class Exchange(asyncio.Protocol):
    """A connection that is kept, and sends its next request when it has an answer, until there is none left."""

    def __init__(self, pending: "Callable[[], bytes | None]", left: asyncio.Future[None]) -> None:
        self._pending = pending
        self._left = left
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what to send on."""
        self._transport = transport

    def begin(self) -> None:
        """Send the next request."""
        request = self._pending()
        if request is not None:
            self._transport.write(request)
        else:
            self._left.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Take in a part of an answer."""
        self._got += data
        end = _end(self._got)
        if end is not None and len(self._got) >= end:
            assert self._got.startswith(b"HTTP/1.1 201"), self._got
            self._got = b""
            self.begin()


def _end(got: bytes) -> int | None:
    """Return where an answer ends that begins with ``got``; None when that is not to be seen yet."""
    at = got.find(b"\r\n\r\n")
    if at < 0:
        return None
    length = got[:at].lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
    if length:
        return at + 4 + int(length)
    return len(got) if got.endswith(b"\r\n0\r\n\r\n") else None  # chunked, as idemkit's replays are


def _requests(kind: str, path: str, prefix: str, count: int) -> list[bytes]:
    path = "/other" if kind == PASSED else path
    found = []
    for n in range(count):
        scope = scope_of(path, None if kind == PASSED else f"{prefix}-{n}")
        lines = b"".join(b"%s: %s\r\n" % line for line in scope["headers"])
        found.append(b"POST %s HTTP/1.1\r\n%s\r\n%s" % (path.encode(), lines, BODY))
    return found


# --- measuring ------------------------------------------------------------------------------------------------------


def _one_at_a_time(server: Server, requests: list[bytes]) -> Cost:
    connection = Connection(server.port)
    walls = []
    spent = server.spent()
    for request in requests:
        start = time.perf_counter()
        head, _ = connection.ask(request)
        walls.append(time.perf_counter() - start)
        assert head.startswith(b"HTTP/1.1 201"), head
    spent = server.spent() - spent
    connection.close()
    return Cost(spent / len(requests) * 1e6, sorted(walls)[len(walls) // 2] * 1e6)


def _at_once(server: Server, requests: list[bytes]) -> Cost:
    spent = server.spent()
    wall = asyncio.run(_all_of(server.port, requests))
    return Cost((server.spent() - spent) / len(requests) * 1e6, wall / len(requests) * 1e6)


async def _all_of(port: int, requests: list[bytes]) -> float:
    """Return the seconds that all take over CONNECTIONS connections."""
    loop = asyncio.get_running_loop()
    pending = iter(requests)
    made = []
    for _ in range(CONNECTIONS):
        left = loop.create_future()
        transport, exchange = await loop.create_connection(
            lambda left=left: Exchange(lambda: next(pending, None), left), "127.0.0.1", port
        )
        made.append((transport, exchange, left))
    start = time.perf_counter()
    for _, exchange, _ in made:
        exchange.begin()
    await asyncio.gather(*(left for _, _, left in made))
    wall = time.perf_counter() - start
    for transport, _, _ in made:
        transport.close()
    return wall


def _case(server: Server, kind: str, how: str, path: str, count: int) -> Callable[[int], Cost]:
    send = _one_at_a_time if how == ONE else _at_once
    prefix = f"{kind.split(maxsplit=1)[0]}-{how.split(maxsplit=1)[0]}-{path[1:]}"

    def case(turn: int) -> Cost:
        server.renew()
        requests = _requests(kind, path, f"{prefix}-{turn}", count)
        if kind == AGAIN:
            _at_once(server, requests)
        return send(server, requests)

    return case


# --- the tables -----------------------------------------------------------------------------------------------------


def served(title: str, ledgers: dict[str, tuple[str, str]], stack: ExitStack) -> None:
    """Print two tables: fast requests, and a slow handler with its duplicates.

    Args:
        title: where the ledgers are.
        ledgers: what is shown, the middleware and its ledger, as in :func:`http_peers.guarded`.
        stack: which stops the servers.
    """
    servers = {}
    for shown, (name, ledger) in ({BARE: (BARE, "memory:")} | ledgers).items():
        servers[shown] = Server(name, ledger)
        stack.callback(servers[shown].stop)
    cases: dict[tuple[str, str, str], Callable[[int], Cost]] = {}
    for kind in KINDS:
        for shown, server in servers.items():
            for how, count in ((ONE, REQUESTS), (MANY, AT_ONCE)):
                cases[kind, shown, how] = _case(server, kind, how, "/orders", count)
    costs = interleaved(cases, ROUNDS)
    rows = []
    for kind in KINDS:
        for shown in servers:
            one, many = costs[kind, shown, ONE], costs[kind, shown, MANY]
            bare = costs[kind, BARE, ONE]
            added = ("", "") if shown == BARE else (round(one.wall - bare.wall), round(one.cpu - bare.cpu))
            rows.append(
                (f"{kind}, {shown}", round(one.wall), added[0], round(one.cpu), added[1], round(1e6 / many.wall))
            )
    head = ["", "latency µs", "added", "server CPU µs", "added", f"requests/s, {CONNECTIONS} connections"]
    table(f"{title}; uvicorn, keep-alive: median of {ROUNDS} interleaved rounds", head, rows)
    _slow(title, {shown: server for shown, server in servers.items() if shown != BARE})


def _slow(title: str, servers: dict[str, Server]) -> None:
    cases = {}
    for shown, server in servers.items():
        for kind, count in ((FIRST, SLOW_REQUESTS), (AGAIN, 4 * SLOW_REQUESTS)):
            cases[shown, kind] = _case(server, kind, ONE, "/slow", count)
    costs = interleaved(cases, SLOW_ROUNDS)
    rows = []
    for shown in servers:
        first, again = (costs[shown, kind].wall / 1e3 for kind in (FIRST, AGAIN))
        goal = ("", "")
        if OURS in shown:
            goal = (f"<= {SHARE:g}", "yes" if again <= SHARE * SLOW * 1e3 else "NO")
        rows.append((shown, first, again, again / (SLOW * 1e3), *goal))
    table(
        f"{title}; uvicorn, a handler of {SLOW * 1e3:g} ms: ms, median of {SLOW_ROUNDS} interleaved rounds",
        ["", "first request", "duplicate", "of the handler's time", "goal", "met"],
        rows,
    )


def in_memory() -> dict[str, tuple[str, str]]:
    """Return the ledgers in memory, for :func:`served`."""
    return {name: (name, "memory:") for name in PEERS}
