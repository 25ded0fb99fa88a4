"""Reads DynamoDB's answers: what they hold, and what its errors mean. For those of all services, see ``wire/codes.py``."""

from collections.abc import Mapping
from typing import cast

from onceward.core.record import Record, Reply
from onceward.errors import StoreError
from onceward.stores.dynamodb.items import Item
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


def won(record: Record | None, answer: ServiceAnswer, stamp: float) -> Reply:
    """Return the reply to a write that was made and stamped with ``stamp``, the latest time possible.

    So the lease counts from before the request was sent. If our estimate of the server's time was too old, as after a
    freeze, the answer's time counts. The request may have taken any part of the time between.
    """
    return tuple.__new__(Reply, (True, record, stamp if answer.date is None else max(stamp, answer.date)))


def page(answer: ServiceAnswer) -> tuple[list[Item], Item | None]:
    """Return the items of a scan's page, and where the next page starts."""
    items = _body(answer).get("Items", [])
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise _shapeless("Items")
    return items, member(answer, "LastEvaluatedKey")


def member(answer: ServiceAnswer, name: str) -> Item | None:
    """Return an answer's member, which is an item or a key, or None if there is none.

    Raises:
        StoreError: it is something else. Transient: such an answer counts as lost.
    """
    found = _body(answer).get(name)
    if found is None:
        return None
    if not isinstance(found, dict):
        raise _shapeless(name)
    return found or None


def members(answer: ServiceAnswer, name: str, count: int) -> list[Mapping[str, object]]:
    """Return the ``count`` members of a list in an answer; raises as :func:`member`."""
    found = _body(answer).get(name)
    if not isinstance(found, list) or len(found) != count or not all(isinstance(one, dict) for one in found):
        raise _shapeless(name)
    return found


def read_in(answer: ServiceAnswer, table: str) -> tuple[list[Item], list[Item]]:
    """Return the items that a BatchGetItem has read of a table, and the keys that it has not; raises as :func:`member`."""
    try:
        found: object = (member(answer, "Responses") or {}).get(table, [])
        unread = (member(answer, "UnprocessedKeys") or {}).get(table, {}).get("Keys", [])
        if not all(isinstance(one, dict) for one in (*cast("list[Item]", found), *cast("list[Item]", unread))):
            raise TypeError
    except (AttributeError, TypeError):
        raise _shapeless("Responses") from None
    return cast("list[Item]", found), cast("list[Item]", unread)


def _body(answer: ServiceAnswer) -> Mapping[str, object]:
    if not isinstance(answer.body, Mapping):
        raise _shapeless("members")
    return answer.body


def _shapeless(name: str) -> StoreError:
    return StoreError(f"an answer of DynamoDB makes no sense: its {name} do not fit the request", transient=True)


def units(answer: ServiceAnswer) -> float | None:
    """Return the capacity units that a request consumed, summed over tables; None if the answer does not say."""
    body = answer.body
    told = body.get("ConsumedCapacity") if isinstance(body, Mapping) else None
    if told is None:
        return None
    return sum(float(one["CapacityUnits"]) for one in (told if isinstance(told, list) else [told]))


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
