"""Calls and answers: stores and queues make calls and read answers, and a wire carries them.

Also the meaning of AWS error codes: which errors pass by themselves, and which need a new signature.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, final

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
    body: Any  # the decoded JSON (bytes are base64 text, or bytes from an SDK); for S3 and Query, the content's bytes
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


# Sources (docs.aws.amazon.com): "Error handling with DynamoDB"; S3 API Reference, "Error responses"; SQS API Reference,
# "Common Errors" and the errors of its actions.
PASSING: Final = frozenset(
    {
        "InternalError",
        "InternalServerError",
        "InternalFailure",
        "KmsThrottled",
        "LimitExceeded",
        "OverLimit",
        "ProvisionedThroughputExceeded",
        "ReplicatedWriteConflict",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingError",
        "TransactionConflict",
        "TransactionInProgress",
    }
)
SKEWED: Final = frozenset({"RequestTimeTooSkewed", "RequestExpired", "InvalidSignature", "SignatureDoesNotMatch"})
EXPIRED: Final = frozenset({"ExpiredToken", "InvalidClientTokenId", "InvalidToken", "UnrecognizedClient"})
FIXES: Final = {  # by code: how to fix an error that does not pass by itself
    "ExpiredToken": "the credentials have expired: renew them (aws sso login, or the role's session)",
    "IncompleteSignature": "check the credentials and the region",
    "InvalidSignature": "check the secret key, the region and this machine's clock",
    "MissingAuthenticationToken": "give credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role",
    "SignatureDoesNotMatch": "check the secret key, the region and this machine's clock",
    "UnrecognizedClient": "the access key is not known: check the credentials and the region",
}

_TOKEN: Final = re.compile(r"(x-amz-security-token:)\S+", re.IGNORECASE)


def code_of(answer: ServiceAnswer) -> str:
    """Return the error's short code: ``com.amazonaws…#ThrottlingException`` is ``Throttling``."""
    body = answer.body
    kind = str(body.get("__type", "")) if isinstance(body, dict) else ""
    return short(kind) or f"HTTP {answer.status}"


def short(code: str) -> str:
    """Return a code without its namespace and the word Exception."""
    return code.rpartition("#")[2].removesuffix("Exception")


def message_of(answer: ServiceAnswer) -> str:
    """Return the error's message."""
    body = answer.body
    if not isinstance(body, Mapping):
        return ""
    text = str(body.get("message") or body.get("Message") or "")
    # If a signature is wrong, these services quote the whole request, session token included.
    return _TOKEN.sub(r"\1***", text)


def passes(answer: ServiceAnswer) -> bool:
    """Return whether the same request may succeed later."""
    return answer.status >= 500 or answer.status in {408, 429} or code_of(answer) in PASSING
