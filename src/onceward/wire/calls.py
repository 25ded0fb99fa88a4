"""Calls and answers: stores and queues make calls and read answers, and a wire carries them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, final

Document = Mapping[str, object]


QUERY: Final = "query"


class Service(NamedTuple):
    """A service that speaks AWS JSON, or AWS Query with answers in XML."""

    title: str  # in messages, such as "DynamoDB"
    name: str  # in host names, signatures and (in capitals) AWS_ENDPOINT_URL_..., such as "dynamodb"
    target: str  # the part of X-Amz-Target before the action, such as "DynamoDB_20120810"; for Query, the API's version
    speaks: str = "1.0"  # the version of AWS JSON, or QUERY


class Call(NamedTuple):
    """One request to a service. A wire may send it twice: see :meth:`Wire.send`."""

    service: Service
    action: str  # as the API names it, such as "PutItem"
    body: Document  # the parameters, as the API names them; for Query, flat, with texts as values
    wait: float = 0.0  # seconds that the service may take to answer, added to the wire's timeout, as for a long poll


@final
class ObjectCall(NamedTuple):
    """One request to S3: GET or PUT of an object."""

    method: str
    bucket: str
    key: str
    content: bytes | None = None
    headers: Mapping[str, str] = MappingProxyType(
        {}
    )  # more of them, such as a condition; no x-amz-, which must be signed


class Many(NamedTuple):
    """Calls to send in parallel. The reply is a list with the answer or the error of each."""

    calls: "tuple[Call | ObjectCall, ...]"


class ServiceAnswer(NamedTuple):
    """What a service answered."""

    status: int  # of HTTP; 200 is success
    body: (
        object  # the decoded JSON (bytes are base64 text, or bytes from an SDK); for S3 and Query, the content's bytes
    )
    date: (
        float | None
    )  # the Date header in whole seconds since the epoch; None if there is none, or if a proxy answered
    sent: float  # when the request was sent, on the owner's clock (seconds)
    received: float  # when the answer had arrived, on the same clock


class Wire(Protocol):
    """Sends calls and blocks until they are answered. ``at`` is the time (seconds since the epoch) to sign with."""

    def send(self, call: Call | ObjectCall, at: float) -> ServiceAnswer:
        """Send one call and return its answer, whatever its status.

        If a reused connection turns out to be closed, the wire opens another and sends the call again. The service may
        have run the call before the connection broke. So send only calls that can be repeated, or whose repetition you
        accept. A version identifies a conditional write, a deduplication id a message. A message to a standard queue may
        arrive twice.

        Raises:
            StoreError: no complete answer came (transient), or there are no credentials (not transient).
        """

    def close(self) -> None:
        """Close the connections. The next call opens them again."""


class AsyncWire(Protocol):
    """Like :class:`Wire`, for coroutines. One wire serves several event loops; each has its own connections."""

    async def send(self, call: Call | ObjectCall, at: float) -> ServiceAnswer:
        """Like :meth:`Wire.send`, but async."""

    def close(self) -> None:
        """Like :meth:`Wire.close`."""
