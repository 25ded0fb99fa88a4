"""DynamoDB's own errors and their fixes. For those of all services, see ``wire/codes.py``."""

from collections.abc import Mapping
from typing import cast

from onceward.errors import StoreError
from onceward.wire.calls import Call, ObjectCall, ServiceAnswer
from onceward.wire.codes import FIXES, code_of, message_of, passes

REFUSED = "ConditionalCheckFailed"
CANCELED = "TransactionCanceled"
DENIED = "AccessDenied"

_FIXES = {
    **FIXES,
    "AccessDenied": "allow {action} on the table in the IAM policy of these credentials",
    "ItemCollectionSizeLimitExceeded": "an item collection with local indexes may hold 10 GB: use a table without them",
    "ResourceNotFound": "there is no such table in this region: create it with `onceward init --store '{url}'`, or check the "
    "table's name and the region",
    "Validation": "check that the table's key is the one given here ({keys}), of type S",
    "NoSuchBucket": "there is no such bucket: check blobs= and the region",
}


def failure(call: Call | ObjectCall, answer: ServiceAnswer, *, url: str, keys: str) -> StoreError:
    """Return the error that an answer is. It names the table, the action and, if known, the fix."""
    code, message, action, transient = code_of(answer), message_of(answer), name_of(call), passes(answer)
    # In a transaction any write on any table can be the cause; the message says which.
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


def reasons_of(answer: ServiceAnswer) -> list[Mapping[str, object]]:
    """Return why a transaction was cancelled, one reason for each of its writes."""
    body = cast("Mapping[str, object]", answer.body)
    return cast("list[Mapping[str, object]]", body.get("CancellationReasons") or [])
