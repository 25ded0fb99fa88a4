"""What goes over the wire: one call out, one answer back. Stores and queues make calls and read answers; a wire carries them."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, final

Document = Mapping[str, object]


class Service(NamedTuple):
    """A service that speaks the protocol AWS JSON 1.0.

    Attributes:
        title: for messages, such as ``DynamoDB``.
        name: in host names, in signatures and in capitals behind ``AWS_ENDPOINT_URL_``, such as ``dynamodb``.
        target: what stands before the action in ``X-Amz-Target``, such as ``DynamoDB_20120810``.
    """

    title: str
    name: str
    target: str


class Call(NamedTuple):
    """One request to a service: its action, such as ``PutItem``, and its parameters as the API names them.

    A call may be made twice, although it was asked for once: see :meth:`Wire.send`.

    Attributes:
        service: which one.
        action: as the API names it.
        body: the parameters.
        wait: seconds that the service itself may take before it answers, beyond the wire's timeout, as a long poll does.
    """

    service: Service
    action: str
    body: Document
    wait: float = 0.0


@final
class ObjectCall(NamedTuple):
    """One request to S3: GET or PUT of an object."""

    method: str
    bucket: str
    key: str
    content: bytes | None = None


class Many(NamedTuple):
    """Calls to be sent side by side; the reply is a list of their answers, with the error of each that failed."""

    calls: "tuple[Call | ObjectCall, ...]"


class ServiceAnswer(NamedTuple):
    """What a service answered.

    Attributes:
        status: of HTTP; 200 is success.
        body: the JSON of the answer, decoded (bytes are base64 text, or bytes from an SDK); for S3, the object's bytes.
        date: seconds since the epoch in the ``Date`` header, whole ones; None when there was none, or when the answer is not
            the service's own, but that of a proxy in between.
        sent: when the request was sent, on the owner's clock (seconds).
        received: when the answer had arrived, on the same clock.
    """

    status: int
    body: object
    date: float | None
    sent: float
    received: float


class Wire(Protocol):
    """Carries calls by blocking; ``at`` is the time (seconds since the epoch) to sign with."""

    def send(self, call: Call | ObjectCall, at: float) -> ServiceAnswer:
        """Send one call and return its answer, whatever its status.

        A connection that was kept from an earlier call, and turns out to be closed, is replaced, and the call sent again.
        The service may have carried it out before the connection broke, so a call must be one that can be repeated, or
        whose repetition its sender can bear: a conditional write is recognised by its version, a message by its
        deduplication id; a message to a standard queue may arrive twice.

        Raises:
            StoreError: no whole answer came (transient), or there are no credentials (not transient).
        """

    def close(self) -> None:
        """Give back connections; the next call opens them again."""


class AsyncWire(Protocol):
    """As :class:`Wire`, for coroutines; one wire serves several event loops, each with connections of its own."""

    async def send(self, call: Call | ObjectCall, at: float) -> ServiceAnswer:
        """As :meth:`Wire.send`, awaiting it."""

    def close(self) -> None:
        """As :meth:`Wire.close`."""
