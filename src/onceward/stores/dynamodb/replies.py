"""What answers say, beyond whether they are errors."""

from collections.abc import Mapping
from typing import cast

from onceward.core.record import Record, Reply
from onceward.stores.dynamodb.items import Item
from onceward.wire.calls import Answer


def won(record: Record | None, answer: Answer, stamp: float) -> Reply:
    """Return the reply to a write that was made.

    It was stamped with the latest time possible, so the lease counts from before the request was sent; unless our idea of
    the server's time was too old, as after a machine was frozen: then the answer's own time counts. That is the server's
    when it answered, not when we asked, for nothing tells how long the request took and how long the answer.
    """
    return Reply(True, record, stamp if answer.date is None else max(stamp, answer.date))


def page(answer: Answer) -> tuple[list[Item], Item | None]:
    """Return the items of a scan's page, and where the next one starts."""
    body = cast("Mapping[str, object]", answer.body)
    return cast("list[Item]", body.get("Items", [])), cast("Item | None", body.get("LastEvaluatedKey") or None)


def units(answer: Answer) -> float | None:
    """Return the consumed capacity that an answer tells, summed over tables."""
    body = answer.body
    told = body.get("ConsumedCapacity") if isinstance(body, Mapping) else None
    if told is None:
        return None
    return sum(float(one["CapacityUnits"]) for one in (told if isinstance(told, list) else [told]))
