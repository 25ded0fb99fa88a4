"""The sync wire: requests over our own sockets. Each running request has its own connection; later requests reuse it.

``http.client`` costs twice the CPU and urllib3 four times (``benchmarks/dynamodb.py wire``). Both slow a cold start.
"""

import os
import select
import socket
import time
import weakref
from collections import deque
from typing import Final

from onceward.core.clock import Clock, boottime
from onceward.wire import tls
from onceward.wire.calls import Call, ObjectCall, ServiceAnswer
from onceward.wire.credentials import CredentialSource
from onceward.wire.endpoints import Endpoints, Origin, check_direct
from onceward.wire.http1 import Raw, Unreadable, reply
from onceward.wire.http_calls import Encoder, WireRequest, decode

LIMIT: Final = 32 * 1024 * 1024  # bytes of an answer's content
KEPT: Final = 64  # idle connections to one origin
IDLE: Final = 60.0  # seconds; an older idle connection is not reused, because the network may have dropped it
CHUNK: Final = 65536  # bytes per read
_POLLS: Final = hasattr(select, "poll")  # Windows has none


class HttpWire:
    """Sends calls and blocks until they are answered. Any number of threads can share one, also after a fork.

    Args:
        endpoints: where the services are.
        credentials: where the credentials come from.
        connect_timeout: seconds to open a connection, for each address of the host.
        timeout: seconds for one whole send. The call's ``wait`` is added. Finding credentials and the DNS look-up do not count.
        limit: bytes that an answer may have.
        clock: the owner's clock (seconds), for the answers' ``sent`` and ``received``.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        credentials: CredentialSource,
        *,
        connect_timeout: float = 2.0,
        timeout: float = 5.0,
        limit: int = LIMIT,
        clock: Clock = boottime,
    ) -> None:
        self.credentials = credentials
        self._encoder = Encoder(endpoints)
        self._connect_timeout, self._timeout, self._limit = connect_timeout, timeout, limit
        self._clock = clock
        self._pools: dict[Origin, _Pool] = {}
        self._pid = os.getpid()
        weakref.finalize(self, _close, self._pools)

    def send(self, call: Call | ObjectCall, at: float) -> ServiceAnswer:
        """Send one call, perhaps twice (see :meth:`onceward.wire.calls.Wire.send`). Return its answer, whatever its status.

        Raises:
            StoreError: transient: no complete answer came. Not transient: there are no credentials, the server's certificate
                cannot be verified, or the answer is too large.
        """
        credentials = self.credentials.at_hand() or self.credentials.ask()
        request = self._encoder.encode(call, credentials, at)
        sent = self._clock()
        try:
            raw = self._exchange(request)
        except (OSError, Unreadable, UnicodeError) as error:  # UnicodeError: the host name is not possible
            raise request.failure(error) from error
        return decode(call, request, raw, credentials, sent=sent, received=self._clock())

    def close(self) -> None:
        """Close the idle connections. The next call opens new ones."""
        _close(self._pools)

    def _exchange(self, request: WireRequest) -> Raw:
        deadline = time.monotonic() + self._timeout + request.wait
        if self._pid != os.getpid():  # the parent still uses its connections; closing our copies leaves them open there
            self._pid = os.getpid()
            _close(self._pools)
        pool = self._pools.get(request.origin) or self._pools.setdefault(request.origin, _Pool())
        if (kept := pool.take()) is not None:
            try:
                return self._converse(kept, pool, request, deadline)
            except ConnectionError:
                pass  # the server closed it meanwhile
        fresh = _connect(request.origin, self._connect_timeout, deadline)
        return self._converse(fresh, pool, request, deadline)

    def _converse(self, connection: socket.socket, pool: "_Pool", request: WireRequest, deadline: float) -> Raw:
        reusable = False
        try:
            connection.settimeout(_left(deadline))
            connection.sendall(request.data)
            steps = reply(self._limit)
            next(steps)
            while True:
                steps.send(connection.recv(CHUNK))
                connection.settimeout(_left(deadline))
        except StopIteration as end:
            raw: Raw = end.value
            reusable = raw.reusable and self._pools.get(request.origin) is pool
            return raw
        finally:
            if reusable:
                pool.give(connection)
            else:
                connection.close()


class _Pool:
    """The idle connections to one origin. A deque's ends are safe to share between threads."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, socket.socket]] = deque()

    def take(self) -> socket.socket | None:
        """Return the usable connection that was used last, or None."""
        while True:
            try:
                since, connection = self._kept.pop()
            except IndexError:
                return None
            if boottime() - since >= IDLE:
                connection.close()
                self.close()  # the others are older
                return None
            if is_quiet(connection):
                return connection
            connection.close()

    def give(self, connection: socket.socket) -> None:
        """Keep a connection for the next request, or close it if the pool is full."""
        if len(self._kept) < KEPT:
            self._kept.append((boottime(), connection))
        else:
            connection.close()

    def close(self) -> None:
        """Close all connections."""
        while self._kept:
            try:
                self._kept.pop()[1].close()
            except IndexError:
                return  # another thread took the last


def is_quiet(connection: socket.socket) -> bool:
    """Return whether an idle connection has received no data.

    Unexpected data, such as a second answer to the last request, would be read as the answer to the next one.
    """
    if _POLLS:
        watched = select.poll()
        watched.register(connection, select.POLLIN)
        if not watched.poll(0):
            return True
    connection.settimeout(0)
    try:
        connection.recv(1)
    except OSError as error:  # TLS may send records without data, such as a session ticket
        return isinstance(error, BlockingIOError | InterruptedError) or tls.wants_more(error)
    return False


def _connect(origin: Origin, timeout: float, deadline: float) -> socket.socket:
    """Connect to the first of the host's addresses that answers."""
    check_direct(origin)
    trouble: OSError = ConnectionError("the host has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(min(timeout, _left(deadline)))
            connection.connect(address)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if origin.scheme == "https":
                connection = tls.context().wrap_socket(connection, server_hostname=origin.host)
        except OSError as error:
            connection.close()
            if origin.scheme == "https" and (refusal := tls.refusal(error, origin)) is not None:
                raise refusal from error
            trouble = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise trouble


def _close(pools: dict[Origin, _Pool]) -> None:
    while pools:
        try:
            pools.popitem()[1].close()
        except KeyError:
            return  # another thread also closes them


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
