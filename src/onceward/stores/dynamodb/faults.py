"""What DynamoDB's errors mean: which pass by themselves, and what to do about the others."""

import re
from collections.abc import Mapping
from typing import cast

from onceward.errors import StoreError
from onceward.stores.dynamodb.calls import Answer, Call, ObjectCall

# docs.aws.amazon.com, "Error handling with DynamoDB", and BatchStatementError for the short codes of a batch's members
PASSING = frozenset(
    {
        "InternalServerError",
        "InternalFailure",
        "LimitExceeded",
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
SKEWED = frozenset({"RequestTimeTooSkewed", "RequestExpired", "InvalidSignature", "SignatureDoesNotMatch"})
EXPIRED = frozenset({"ExpiredToken", "UnrecognizedClient", "InvalidToken"})
REFUSED = "ConditionalCheckFailed"
CANCELED = "TransactionCanceled"
DENIED = "AccessDenied"

_TOKEN = re.compile(r"(x-amz-security-token:)\S+", re.IGNORECASE)
_FIXES = {
    "AccessDenied": "allow {action} on the table in the IAM policy of these credentials",
    "ExpiredToken": "the credentials have expired: renew them (aws sso login, or the role's session)",
    "IncompleteSignature": "check the credentials and the region",
    "InvalidSignature": "check the secret key, the region and this machine's clock",
    "ItemCollectionSizeLimitExceeded": "an item collection with local indexes may hold 10 GB: use a table without them",
    "MissingAuthenticationToken": "give credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role",
    "ResourceNotFound": "there is no such table in this region: create it with `onceward init --store '{url}'`, or check the "
    "table's name and the region",
    "SignatureDoesNotMatch": "check the secret key, the region and this machine's clock",
    "UnrecognizedClient": "the access key is not known: check the credentials and the region",
    "Validation": "check that the table's key is the one given here ({keys}), of type S",
    "NoSuchBucket": "there is no such bucket: check blobs= and the region",
}


def code_of(answer: Answer) -> str:
    """Return the error's short code: ``com.amazonaws…#ThrottlingException`` is ``Throttling``."""
    body = answer.body
    kind = str(body.get("__type", "")) if isinstance(body, Mapping) else ""
    return short(kind) or f"HTTP {answer.status}"


def short(code: str) -> str:
    """Return a code without its namespace and the word Exception."""
    return code.rpartition("#")[2].removesuffix("Exception")


def message_of(answer: Answer) -> str:
    """Return the error's message."""
    body = answer.body
    if not isinstance(body, Mapping):
        return ""
    text = str(body.get("message") or body.get("Message") or "")
    # DynamoDB quotes the whole request when its signature is wrong, and with it the session's token.
    return _TOKEN.sub(r"\1***", text)


def passes(answer: Answer) -> bool:
    """Tell whether the same request may succeed later."""
    return answer.status >= 500 or answer.status in {408, 429} or code_of(answer) in PASSING


def failure(code: str, message: str, *, action: str, url: str, keys: str, transient: bool) -> StoreError:
    """Return the error of one request; it names the table, the action and, where one is known, the fix."""
    # Of a transaction any write may be meant, on any table; its message says which.
    fix = "" if transient or action == "dynamodb:TransactWriteItems" else _FIXES.get(code, "")
    if fix and ("hashkey" in message or "rangekey" in message):
        fix = "a key may have 2048 bytes, or 1024 where it is the sort key: give the guard a shorter name"
    elif fix and "size has exceeded" in message:
        fix = "an item may have 400 KB: lower max_result, or keep large results in S3 with blobs='s3://bucket/prefix'"
    advice = f": {fix.format(action=action, url=url, keys=keys)}" if fix else ""
    return StoreError(f"ledger {url}: {action} was refused, {code} ({message}){advice}", transient=transient)


def name_of(call: Call | ObjectCall) -> str:
    """Return what a call does, as IAM names it."""
    return f"dynamodb:{call.action}" if isinstance(call, Call) else f"s3:{call.method.title()}Object"


def reasons_of(answer: Answer) -> list[Mapping[str, object]]:
    """Return why a transaction was cancelled, one reason for each of its writes."""
    body = cast("Mapping[str, object]", answer.body)
    return cast("list[Mapping[str, object]]", body.get("CancellationReasons") or [])
