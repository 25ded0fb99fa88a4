"""Reads DynamoDB's answers, once it is known that they are no errors."""

from collections.abc import Mapping

from onceward.core.record import Record, Reply
from onceward.errors import StoreError
from onceward.stores.dynamodb.items import Item
from onceward.wire.calls import ServiceAnswer


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
