"""The async wire: the same requests over non-blocking sockets that the event loop only watches.

One callback connects the loop and the socket, and the socket itself does TLS. So no layer copies data, and a request costs
about 0.6 of aiohttp's CPU (``benchmarks/dynamodb.py wire``). The loop must have ``add_reader``: asyncio on Unix, or uvloop.
"""

import asyncio
import socket
import ssl
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Final

from onceward.core.clock import Clock, boottime
from onceward.wire import connections, tls
from onceward.wire.calls import Call, ObjectCall, ServiceAnswer
from onceward.wire.connections import IdleConnections, is_quiet
from onceward.wire.credentials import CredentialSource
from onceward.wire.endpoints import Endpoints, Origin
from onceward.wire.http1 import Raw, Unreadable, reply
from onceward.wire.http_calls import Encoder, WireRequest, decode

_LATER: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class AsyncHttpWire:
    """Sends calls for coroutines. One wire serves several event loops; each has its own connections.

    The arguments are those of :class:`HttpWire`. Waiting for a turn does not count towards the ``timeout``: a thousand tasks
    may share these connections. The DNS look-up does.
    """

    def __init__(
        self, endpoints: Endpoints, credentials: CredentialSource, *, timeout: float = 5.0, clock: Clock = boottime
    ) -> None:
        self.credentials = credentials
        self._encoder = Encoder(endpoints)
        self._timeout, self._clock = timeout, clock
        self._pools: dict[asyncio.AbstractEventLoop, _Pool] = {}
        self._opening = threading.RLock()  # reentrant: a signal handler may call in this thread
        weakref.finalize(self, _close, self._pools)

    async def send(self, call: Call | ObjectCall, at: float) -> ServiceAnswer:
        """Like :meth:`HttpWire.send`, but async. A cancelled send closes its connection."""
        credentials = self.credentials.at_hand()
        if credentials is None:
            credentials = await asyncio.to_thread(self.credentials.ask)
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop) or self._opened(loop)
        request = self._encoder.encode(call, credentials, at)
        try:
            async with pool.turns, asyncio.timeout(self._timeout + request.wait):
                sent = self._clock()
                raw = await self._exchange(request, pool, loop)
        except (OSError, Unreadable, UnicodeError) as error:  # UnicodeError: the host name is not possible
            raise request.failure(error) from error
        return decode(call, request, raw, credentials, sent=sent, received=self._clock())

    def close(self) -> None:
        """Close the idle connections of every event loop. The next call opens new ones."""
        _close(self._pools)

    def _opened(self, loop: asyncio.AbstractEventLoop) -> "_Pool":
        with self._opening:
            for other in [other for other in self._pools if other.is_closed()]:
                self._pools.pop(other).close()
            return self._pools.setdefault(loop, _Pool())

    async def _exchange(self, request: WireRequest, pool: "_Pool", loop: asyncio.AbstractEventLoop) -> Raw:
        if (idle := pool.to(request.origin).take()) is not None:
            try:
                return await self._converse(idle, pool, request, loop)
            except ConnectionError:
                pass  # the server closed it meanwhile
        async with asyncio.timeout(connections.CONNECT_TIMEOUT):  # for all addresses, and the DNS look-up
            fresh = _Connection(await _connect(request.origin, loop), loop)
        return await self._converse(fresh, pool, request, loop)

    async def _converse(
        self, connection: "_Connection", pool: "_Pool", request: WireRequest, loop: asyncio.AbstractEventLoop
    ) -> Raw:
        reusable = False
        try:
            raw = await connection.converse(request.data, reply(connections.LIMIT))
            reusable = raw.reusable and self._pools.get(loop) is pool
        finally:
            if reusable:
                pool.to(request.origin).give(connection)
            else:
                connection.close()
        return raw


class _Connection:
    """A socket that an event loop watches."""

    __slots__ = ("_loop", "_open", "_request", "_socket")

    def __init__(self, connected: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._socket, self._loop = connected, loop
        self._request: tuple[Generator[None, bytes, Raw], asyncio.Future[Raw]] | None = None
        self._open = True
        loop.add_reader(connected.fileno(), self._readable)

    async def converse(self, data: bytes, steps: Generator[None, bytes, Raw]) -> Raw:
        """Send a request and return its answer."""
        next(steps)
        answer: asyncio.Future[Raw] = self._loop.create_future()
        self._request = steps, answer
        try:
            try:
                done = self._socket.send(data)
            except _LATER:
                done = 0
            if done < len(data):
                await self._send_rest(memoryview(data)[done:])
            return await answer
        finally:
            self._request = None
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # after a failed send, nothing else retrieves it

    def is_fit(self) -> bool:
        """Return whether it is open and has received no unexpected data. The loop may not have seen such data yet."""
        return self._open and is_quiet(self._socket)

    def close(self) -> None:
        """Close it. Call this in the loop's own thread, or when the loop does not run."""
        self._leave()
        self._socket.close()

    def _leave(self) -> None:
        """Stop watching it. A send may still be running, so the socket stays open and keeps its number."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._socket.fileno())

    async def _send_rest(self, data: memoryview) -> None:
        while data:
            await _ready(self._loop.add_writer, self._loop.remove_writer, self._socket.fileno())
            try:
                data = data[self._socket.send(data) :]
            except _LATER:
                continue

    def _readable(self) -> None:
        steps, answer = self._request or (None, None)
        try:
            data = self._socket.recv(connections.CHUNK)
            if steps is None or answer is None or answer.done():
                raise ConnectionResetError("unexpected data arrived")  # or it ended: all ends take this path
            steps.send(data)
        except _LATER:
            pass
        except StopIteration as end:
            assert answer is not None
            answer.set_result(end.value)
        except BaseException as error:
            self._leave()
            is_interrupt = not isinstance(error, Exception)
            if answer is None:
                self._socket.close()
            elif not answer.done():  # for the task that waits for the answer
                answer.set_exception(ConnectionResetError("an interrupt ended the reading") if is_interrupt else error)
            if is_interrupt:
                raise


class _Pool:
    """The idle connections of one event loop, and the turns to use one."""

    def __init__(self) -> None:
        self.turns = asyncio.Semaphore(connections.KEPT)
        self._idle: dict[Origin, IdleConnections[_Connection]] = {}

    def to(self, origin: Origin) -> IdleConnections[_Connection]:
        """Return the idle connections to ``origin``."""
        return self._idle.get(origin) or self._idle.setdefault(origin, IdleConnections(_Connection.is_fit))

    def close(self) -> None:
        """Close all. Call this in the loop's own thread, or when the loop does not run."""
        for idle in self._idle.values():
            idle.close()


async def _connect(origin: Origin, loop: asyncio.AbstractEventLoop) -> socket.socket:
    """Connect to the first of the host's addresses that answers."""
    trouble: OSError = ConnectionError("the host has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            await loop.sock_connect(connection, address)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if origin.scheme == "https":
                connection = wrapped = tls.context().wrap_socket(
                    connection, server_hostname=origin.host, do_handshake_on_connect=False
                )
                await _handshake(wrapped, loop)
        except OSError as error:
            connection.close()
            if (refusal := tls.refusal(error, origin)) is not None:
                raise refusal from error
            trouble = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise trouble


async def _handshake(connection: ssl.SSLSocket, loop: asyncio.AbstractEventLoop) -> None:
    while True:
        try:
            return connection.do_handshake()
        except ssl.SSLWantReadError:
            await _ready(loop.add_reader, loop.remove_reader, connection.fileno())
        except ssl.SSLWantWriteError:
            await _ready(loop.add_writer, loop.remove_writer, connection.fileno())


async def _ready(add: Callable[..., object], remove: Callable[[int], object], number: int) -> None:
    """Wait until a socket can be read from, or written to."""
    ready = asyncio.Event()
    add(number, ready.set)
    try:
        await ready.wait()
    finally:
        remove(number)


def _close(pools: "dict[asyncio.AbstractEventLoop, _Pool]") -> None:
    while pools:
        try:
            loop, pool = pools.popitem()
        except KeyError:
            return  # another thread also closes them
        if loop.is_running() and loop is not asyncio._get_running_loop():  # documented; None without one
            loop.call_soon_threadsafe(pool.close)
        else:
            pool.close()
