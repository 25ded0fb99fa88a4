"""What goes over the wire: one call out, one answer back. The verbs make calls and read answers; a wire carries them."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

Document = Mapping[str, object]


class Call(NamedTuple):
    """One request to DynamoDB: its action, such as ``PutItem``, and its parameters as the API names them."""

    action: str
    body: Document


class ObjectCall(NamedTuple):
    """One request to S3: GET or PUT of an object."""

    method: str
    bucket: str
    key: str
    content: bytes | None = None


class Many(NamedTuple):
    """Calls to be sent side by side; the reply is a list of their answers, with the error of each that failed."""

    calls: "tuple[Call | ObjectCall, ...]"


class Answer(NamedTuple):
    """What a service answered.

    Attributes:
        status: of HTTP; 200 is success.
        body: the JSON of the answer, decoded (bytes are base64 text, or bytes from an SDK); for S3, the object's bytes.
        date: seconds since the epoch in the ``Date`` header, whole ones; None when there was none.
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

    def send(self, call: Call | ObjectCall, at: float) -> Answer:
        """Send one call and return its answer, whatever its status.

        Raises:
            StoreError: no whole answer came (transient), or there are no credentials (not transient).
        """

    def close(self) -> None:
        """Give back connections; the next call opens them again."""


class AsyncWire(Protocol):
    """As :class:`Wire`, for coroutines; one wire serves several event loops, each with connections of its own."""

    async def send(self, call: Call | ObjectCall, at: float) -> Answer:
        """As :meth:`Wire.send`, awaiting it."""

    def close(self) -> None:
        """As :meth:`Wire.close`."""
