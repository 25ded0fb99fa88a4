"""What a queue makes of the answer of a handler: whether the delivery is over."""

from collections.abc import Iterable

_AGAIN = {408, 409, 425, 429}  # a client sends the request again after these, and after 5xx


def is_over(answer: object) -> bool:
    """Return whether the sender of a delivery is content with an answer.

    It is not content with an HTTP response of 408, 409, 425, 429 or 5xx, with a Lambda response that lists
    ``batchItemFailures``, and with a list of :class:`BatchOutcome` of which one has failed.
    """
    status = getattr(answer, "status_code", None)
    if isinstance(answer, dict):
        status = answer.get("statusCode")
        if answer.get("batchItemFailures"):
            return False
    if isinstance(status, int):
        return status < 500 and status not in _AGAIN
    outcomes: Iterable[object] = answer if isinstance(answer, list) else ()
    return not any(getattr(one, "status", None) in {"failed", "busy", "deferred"} for one in outcomes)
