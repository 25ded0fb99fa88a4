"""What answers say, beyond whether they are errors."""

from collections.abc import Mapping

from onceward.core.record import Record, Reply
from onceward.errors import StoreError
from onceward.stores.dynamodb.items import Item
from onceward.wire.calls import ServiceAnswer


def won(record: Record | None, answer: ServiceAnswer, stamp: float) -> Reply:
    """Return the reply to a write that was made.

    It was stamped with the latest time possible, so the lease counts from before the request was sent; unless our idea of
    the server's time was too old, as after a machine was frozen: then the answer's own time counts. That is the server's
    when it answered, not when we asked, for nothing tells how long the request took and how long the answer.
    """
    return Reply(True, record, stamp if answer.date is None else max(stamp, answer.date))


def page(answer: ServiceAnswer) -> tuple[list[Item], Item | None]:
    """Return the items of a scan's page, and where the next one starts."""
    items = _body(answer).get("Items", [])
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise _shapeless("Items")
    return items, member(answer, "LastEvaluatedKey")


def member(answer: ServiceAnswer, name: str) -> Item | None:
    """Return an item, or a key, that an answer has under this name; None when it has none.

    Raises:
        StoreError: there is something else; transient, for an answer that makes no sense is as good as lost.
    """
    found = _body(answer).get(name)
    if found is None:
        return None
    if not isinstance(found, dict):
        raise _shapeless(name)
    return found or None


def members(answer: ServiceAnswer, name: str, count: int) -> list[Mapping[str, object]]:
    """Return so many members of a list in an answer; raises as :func:`member`."""
    found = _body(answer).get(name)
    if not isinstance(found, list) or len(found) != count or not all(isinstance(one, dict) for one in found):
        raise _shapeless(name)
    return found


def _body(answer: ServiceAnswer) -> Mapping[str, object]:
    if not isinstance(answer.body, Mapping):
        raise _shapeless("members")
    return answer.body


def _shapeless(name: str) -> StoreError:
    return StoreError(f"an answer of DynamoDB makes no sense: its {name} are not what was asked for", transient=True)


def units(answer: ServiceAnswer) -> float | None:
    """Return the consumed capacity that an answer tells, summed over tables."""
    body = answer.body
    told = body.get("ConsumedCapacity") if isinstance(body, Mapping) else None
    if told is None:
        return None
    return sum(float(one["CapacityUnits"]) for one in (told if isinstance(told, list) else [told]))
