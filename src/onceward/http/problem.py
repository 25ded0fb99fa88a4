"""Answers to requests that do not reach the handler: problem details (RFC 9457), with a link to the documentation."""

from math import ceil
from typing import Final, NamedTuple

import msgspec

from onceward.errors import (
    Busy,
    LeaseLost,
    Mismatch,
    OncewardError,
    Parked,
    ResultUnavailable,
    StoreError,
    UnknownNeed,
    UnknownStatus,
)
from onceward.http.answer import Answer

DOCS: Final = "https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header-07"
# Seconds, at most, for Retry-After: most requests finish long before their lease ends.
_SOON: Final = 5


class Problem(NamedTuple):
    """Why a request is refused."""

    kind: str  # a word by which programs tell problems apart; the fragment of the type URI
    status: int
    title: str  # the same for all problems of the kind
    detail: str  # what happened to this request, and what to do
    retry_after: int | None = None  # seconds until the same request can be sent again; None if that is useless

    def about(self, **facts: object) -> "Problem":
        """Return this problem with the facts of one request in its detail."""
        return self._replace(detail=self.detail.format(**facts))

    def answer(self, docs: str) -> Answer:
        """Return the response; ``docs`` is the URL of the documentation."""
        document = {"type": f"{docs}#{self.kind}", "title": self.title, "status": self.status, "detail": self.detail}
        headers = [
            ("Content-Type", "application/problem+json"),
            ("Content-Language", "en"),
            ("Link", f'<{docs}>; rel="describedby"; type="text/html"'),
        ]
        if self.retry_after is not None:
            headers.append(("Retry-After", str(self.retry_after)))
        return Answer(self.status, headers, msgspec.json.encode(document))


MISSING: Final = Problem(
    "missing",
    400,
    "Idempotency-Key is missing",
    "This operation needs an idempotency key in {where}, the same one each time the request is sent again. "
    "Nothing was done.",
)
MALFORMED: Final = Problem(
    "malformed", 400, "Idempotency-Key is malformed", "The key in {where} cannot be used: {why}. Nothing was done."
)
UNSCOPED: Final = Problem(
    "unscoped",
    400,
    "Idempotency-Key has no known caller",
    "A key belongs to one caller: {why}. Nothing was done.",
)
TOO_LARGE: Final = Problem(
    "too-large",
    413,
    "Request is too large to be repeated safely",
    "With an idempotency key, a request's body can have at most {most} bytes. Nothing was done.",
)
UNREADABLE: Final = Problem(
    "unreadable", 400, "Request cannot be read", "The request's body is incomplete: {why}. Nothing was done."
)
BODILESS: Final = Problem(
    "unavailable",
    409,
    "The answer cannot be repeated",
    "A request with this Idempotency-Key was carried out and answered with status {status}. It will not be carried out "
    "again, and its answer cannot be repeated: {why}.",
)
FAILED: Final = Problem(
    "failed",
    500,
    "The operation failed",
    "A request with this Idempotency-Key was carried out and failed. It will not be carried out again.",
)
_IN_FLIGHT: Final = Problem(
    "in-flight",
    409,
    "A request is outstanding for this Idempotency-Key",
    "A request with the same Idempotency-Key is being carried out. Send this one again later, to get its answer.",
    1,
)
_UNREADY: Final = Problem(
    "unready",
    503,
    "Idempotency keys cannot be checked now",
    "Nothing was done. Send the request again later, with the same Idempotency-Key.",
)
_REUSED: Final = Problem(
    "reused",
    422,
    "Idempotency-Key is already used",
    "This Idempotency-Key was used before for another request (method, path, query or body differ). Give each "
    "operation a key of its own. Nothing was done.",
)
_STOPPED: Final = Problem(
    "stopped",
    409,
    "The operation is stopped",
    "Earlier requests with this Idempotency-Key did not finish. It is not tried again until somebody has looked at it.",
)
_UNAVAILABLE: Final = Problem(
    "unavailable",
    409,
    "The answer cannot be repeated",
    "A request with this Idempotency-Key was carried out. It will not be carried out again, and its answer cannot be "
    "repeated.",
)


def of_error(error: OncewardError) -> Problem | None:
    """Return the problem of a request that the guard refused; None if the error does not concern the request."""
    match error:
        case Busy():
            return _IN_FLIGHT._replace(retry_after=max(1, min(ceil(error.retry_after), _SOON)))
        case LeaseLost():
            return _IN_FLIGHT
        case Mismatch():
            return _REUSED
        case Parked():
            return _STOPPED
        case ResultUnavailable():
            return _UNAVAILABLE
        case StoreError() if error.transient:
            return _UNREADY._replace(retry_after=1)
        case StoreError() | UnknownNeed() | UnknownStatus():
            return _UNREADY
    return None
