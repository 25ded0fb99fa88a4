"""The sync wire: signed requests over our own sockets. Each running request has its own connection; later requests reuse it.

``http.client`` costs twice the CPU and urllib3 four times (``benchmarks/dynamodb.py wire``). Both slow a cold start.
"""

import os
import socket
import time
import weakref

from onceward.core.clock import Clock, boottime
from onceward.wire import connections, tls
from onceward.wire.calls import Call, ObjectCall, ServiceAnswer
from onceward.wire.connections import IdleConnections, is_quiet
from onceward.wire.credentials import CredentialSource
from onceward.wire.endpoints import Endpoints, Origin
from onceward.wire.http1 import Raw, Unreadable, reply
from onceward.wire.http_calls import Encoder, WireRequest, decode


class HttpWire:
    """Sends calls and blocks until they are answered. Any number of threads can share one, also after a fork.

    Args:
        endpoints: where the services are.
        credentials: where the credentials come from.
        timeout: seconds for one whole send. The call's ``wait`` is added. Finding credentials and the DNS look-up do not count.
        clock: the owner's clock (seconds), for the answers' ``sent`` and ``received``.
    """

    def __init__(
        self, endpoints: Endpoints, credentials: CredentialSource, *, timeout: float = 5.0, clock: Clock = boottime
    ) -> None:
        self.credentials = credentials
        self._encoder = Encoder(endpoints)
        self._sockets = Sockets(timeout)
        self._clock = clock

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
            raw = self._sockets.exchange(request)
        except (OSError, Unreadable, UnicodeError) as error:  # UnicodeError: the host name is not possible
            raise request.failure(error) from error
        return decode(call, request, raw, credentials, sent=sent, received=self._clock())

    def close(self) -> None:
        """Close the idle connections. The next call opens new ones."""
        self._sockets.close()


class Sockets:
    """Sends requests and blocks until they are answered. Any number of threads can share one, also after a fork.

    Args:
        timeout: seconds for one whole exchange. The request's ``wait`` is added. The DNS look-up does not count.
        bundle: the environment variable that can name a file of trusted certificates.
    """

    def __init__(self, timeout: float, bundle: str = tls.AWS_BUNDLE) -> None:
        self._timeout, self._bundle = timeout, bundle
        self._pools: dict[Origin, IdleConnections[socket.socket]] = {}
        self._pid = os.getpid()
        weakref.finalize(self, _close, self._pools)

    def close(self) -> None:
        """Close the idle connections. The next exchange opens new ones."""
        _close(self._pools)

    def exchange(self, request: WireRequest, begun: list[Raw] | None = None) -> Raw:
        """Send one request, perhaps twice (see :meth:`onceward.wire.calls.Wire.send`). Return its answer, whatever its status.

        ``begun`` gets the answer without its content, as soon as its head is read.

        Raises:
            OSError, Unreadable, UnicodeError: no complete answer came.
            StoreError: the server's certificate cannot be verified.
        """
        deadline = time.monotonic() + self._timeout + request.wait
        if self._pid != os.getpid():  # the parent still uses its connections; closing our copies leaves them open there
            _close(self._pools)
            self._pid = os.getpid()  # last: another thread would take what is not closed yet
        pool = self._pools.get(request.origin) or self._pools.setdefault(request.origin, IdleConnections(is_quiet))
        if (idle := pool.take()) is not None:
            try:
                return self._converse(idle, pool, request, deadline, begun)
            except ConnectionError:  # the server closed it meanwhile
                if begun:
                    raise
        return self._converse(_connect(request.origin, deadline, self._bundle), pool, request, deadline, begun)

    def _converse(
        self,
        connection: socket.socket,
        pool: IdleConnections[socket.socket],
        request: WireRequest,
        deadline: float,
        begun: list[Raw] | None,
    ) -> Raw:
        reusable = False
        try:
            connection.settimeout(_remaining(deadline))
            connection.sendall(request.data)
            steps = reply(connections.LIMIT, begun)
            next(steps)
            while True:
                steps.send(connection.recv(connections.CHUNK))
                connection.settimeout(_remaining(deadline))
        except StopIteration as end:
            raw: Raw = end.value
            reusable = raw.reusable and self._pools.get(request.origin) is pool
            return raw
        finally:
            if reusable:
                pool.give(connection)
            else:
                connection.close()


def _connect(origin: Origin, deadline: float, bundle: str) -> socket.socket:
    """Connect to the first of the host's addresses that answers."""
    trouble: OSError = ConnectionError("the host has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(min(connections.CONNECT_TIMEOUT, _remaining(deadline)))
            connection.connect(address)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if origin.scheme == "https":
                connection = tls.context(bundle).wrap_socket(connection, server_hostname=origin.host)
        except OSError as error:
            connection.close()
            if origin.scheme == "https" and (refusal := tls.refusal(error, origin, bundle)) is not None:
                raise refusal from error
            trouble = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise trouble


def _close(pools: dict[Origin, IdleConnections[socket.socket]]) -> None:
    while pools:
        try:
            pools.popitem()[1].close()
        except KeyError:
            return  # another thread also closes them


def _remaining(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds
