"""The meaning of AWS error codes: which errors pass by themselves, and which need a new signature."""

import re
from collections.abc import Mapping
from typing import Final

from onceward.wire.calls import ServiceAnswer

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
    kind = str(body.get("__type", "")) if isinstance(body, Mapping) else ""
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
