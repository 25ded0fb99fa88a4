"""Problems: why a request is refused, as problem details (RFC 9457) with what to do next."""

from math import ceil
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from onceward.errors import (
    Busy,
    KeyMissing,
    LeaseLost,
    Mismatch,
    OncewardError,
    OwnerUsed,
    ResultNotRecorded,
    ResultUnavailable,
    StepNotRecorded,
    StoreError,
)
from onceward.errors import Parked as ErrorParked
from onceward.service.bodies import ProblemBody

TYPE: Final = "urn:onceward:problem:"
_SOON: Final = 5.0  # seconds, at most, for Retry-After: most claims end long before their lease


class RequestRefused(Exception):
    """A request that is refused before the ledger is asked, or without it."""

    def __init__(self, kind: "ProblemKind", detail: str, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.kind = kind
        self.retry_after = retry_after


class ProblemKind(NamedTuple):
    """A kind of problem: its word, its status and its title."""

    word: str
    status: int
    title: str


MALFORMED: Final = ProblemKind("malformed", 400, "The request is malformed")
UNKNOWN_CLIENT: Final = ProblemKind("unknown-client", 401, "The token is missing or unknown")
FORBIDDEN: Final = ProblemKind("forbidden", 403, "The token does not allow this")
NOT_FOUND: Final = ProblemKind("not-found", 404, "There is nothing here")
METHOD: Final = ProblemKind("method", 405, "The method is not POST")
SLOW: Final = ProblemKind("slow", 408, "The request did not arrive in time")
BUSY: Final = ProblemKind("busy", 409, "Another claim holds the key")
UNAVAILABLE: Final = ProblemKind("result-unavailable", 409, "The key is completed, without a result to replay")
LOST: Final = ProblemKind("lost", 410, "The claim is over")
TOO_LARGE: Final = ProblemKind("too-large", 413, "The request is too large")
NOT_JSON: Final = ProblemKind("not-json", 415, "The request is not JSON")
WRONG_HOST: Final = ProblemKind("wrong-host", 421, "The host is not this service")
MISMATCH: Final = ProblemKind("mismatch", 422, "The key was used with another input")
ID_USED: Final = ProblemKind("id-used", 422, "The id was used before")
OTHER_RESULT: Final = ProblemKind("other-result", 422, "Another result is recorded")
PARKED: Final = ProblemKind("parked", 423, "The key is parked")
FAILED: Final = ProblemKind("failed", 500, "The service failed")
REFUSED: Final = ProblemKind("ledger-refuses", 500, "The ledger refuses this")
UNREADY: Final = ProblemKind("unready", 503, "The ledger cannot be reached now")
STOPPING: Final = ProblemKind("stopping", 503, "This instance stops")

_AGAIN: Final = "Send the same request again"


def answer_of(error: Exception) -> Response:
    """Return the answer to a request that ended in ``error``."""
    kind, detail, wait = _problem(error)
    body = ProblemBody(
        type=TYPE + kind.word,
        title=kind.title,
        status=kind.status,
        detail=detail,
        retry_after=UNSET if wait is None else wait,
    )
    headers = {} if wait is None else {"Retry-After": str(max(1, ceil(wait)))}
    if kind is UNKNOWN_CLIENT:
        headers["WWW-Authenticate"] = 'Bearer realm="onceward"'
    if kind is METHOD:
        headers["Allow"] = "POST"
    return Response(msgspec.json.encode(body), kind.status, headers, "application/problem+json")


# What an error of the ledger is to the client. The first kind that fits counts.
_ERRORS: Final[tuple[tuple[type[Exception], ProblemKind], ...]] = (
    (LeaseLost, LOST),
    (Mismatch, MISMATCH),
    (OwnerUsed, ID_USED),
    (ErrorParked, PARKED),
    (ResultUnavailable, UNAVAILABLE),
    (KeyMissing, MALFORMED),
    (ValueError, MALFORMED),
    (TypeError, MALFORMED),
    (OncewardError, REFUSED),
)


def _problem(error: Exception) -> tuple[ProblemKind, str, float | None]:
    match error:
        case RequestRefused():
            return error.kind, str(error), error.retry_after
        case Busy():
            return (
                BUSY,
                f"{error.key} is held for {error.retry_after:.1f} s more. {_AGAIN}",
                min(error.retry_after, _SOON),
            )
        case ResultNotRecorded() | StepNotRecorded():
            return UNREADY, f"{error.key}: the result is not recorded yet: the ledger cannot be reached. {_AGAIN}", 1.0
        case StoreError() if error.transient:
            return UNREADY, f"The ledger cannot be reached, so nobody knows whether this was done. {_AGAIN}", 1.0
    for kind, problem in _ERRORS:
        if isinstance(error, kind):
            return problem, str(error), None
    return FAILED, f"{_AGAIN}. If that does not help, read the log of the service", None
