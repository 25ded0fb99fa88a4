"""The sync wire: signed requests over our own sockets (``sockets.py``)."""

from onceward.core.clock import Clock, boottime
from onceward.wire.calls import Call, ObjectCall, ServiceAnswer
from onceward.wire.credentials import CredentialSource
from onceward.wire.endpoints import Endpoints
from onceward.wire.http1 import Unreadable
from onceward.wire.http_calls import Encoder, decode
from onceward.wire.sockets import Sockets


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
