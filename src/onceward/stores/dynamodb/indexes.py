"""The two sparse indexes of a table: of messages that are due, and, as an option, of what is not completed.

An index has the items that have its first attribute, which includes a shard: shards spread the writes over DynamoDB's partitions.
A record has a shard of messages while it has a ``due_at``, and :data:`OPEN` until it is completed. An index can be late, so it
only hints at records: a consistent read of each follows.
"""

from collections.abc import Sequence
from typing import Final

from onceward.core.drivers import Steps
from onceward.errors import StoreError
from onceward.stores.contract import NoIndex
from onceward.stores.dynamodb.items import OPEN, Item
from onceward.stores.dynamodb.requests import DYNAMODB, Body, Terms
from onceward.stores.dynamodb.table import DynamoTable
from onceward.wire.calls import Call, ServiceAnswer
from onceward.wire.codes import code_of, message_of

MESSAGES: Final = "onceward_due"  # its range is due_at
OPEN_INDEX: Final = "onceward_open"  # its range is the record's key
_BUILDING: Final = "backfilling"  # in the answer of an index that DynamoDB still makes


def outbox(store: DynamoTable) -> Steps[None]:
    """Check that the index of messages is there, or is being made (:data:`onceward.stores.capabilities.OUTBOX`)."""
    try:
        yield from answers(store, MESSAGES, [messages(store, 0, (0.0, 0.0), None, Limit=1)])
    except NoIndex as error:
        if _BUILDING not in str(error):
            raise


def messages(store: DynamoTable, shard: int, between: tuple[float, float], start: Item | None, **more: object) -> Call:
    """Ask for the entries of one shard that are due between two times, the longest due first. Raises NoIndex."""
    layout, terms = store.layout, Terms()
    if layout.shard is None:
        raise NoIndex(
            f"ledger {store.url}: another system writes to this table, and would lose messages. Give the guards that send a "
            "table of their own"
        )
    low, high = map(terms.value, between)
    times = f"{terms.name(layout.names['due_at'])} BETWEEN {low} AND {high}"
    keys = f"{terms.compared(layout.shard, '=', layout.shard_text(shard))} AND {times}"
    return _query(store, MESSAGES, terms.body(KeyConditionExpression=keys), start, more)


def unfinished(
    store: DynamoTable,
    status: str,
    shard: int,
    start: Item | None = None,
    *,
    prefix: str = "",
    lapsed: float | None = None,
    **more: object,
) -> Call:
    """Ask for the entries of a status and a shard, in the order of their keys; of leases, those that end by ``lapsed``.

    A worker without ``index=open`` changes the status, but not :data:`OPEN`. Where the two differ, the entry is left out.
    """
    layout, terms = store.layout, Terms()
    keys = terms.compared(OPEN, "=", layout.open_text(status, shard))
    if begins := layout.holder.prefix + prefix:
        keys += f" AND {terms.begins(layout.holder.name, begins)}"
    terms.add(terms.compared(layout.status, "=", status))
    if lapsed is not None:
        terms.add(terms.compared(layout.names["lease_until"], "<=", lapsed))
    return _query(store, OPEN_INDEX, terms.body(KeyConditionExpression=keys), start, more)


def _query(store: DynamoTable, index: str, body: Body, start: Item | None, more: Body) -> Call:
    begin = {} if start is None else {"ExclusiveStartKey": start}
    return Call(DYNAMODB, "Query", {**store.requests.common, "IndexName": index, **body, **begin, **more})


def answers(store: DynamoTable, index: str, calls: Sequence[Call]) -> Steps[list[ServiceAnswer]]:
    """Send queries of an index in parallel. Raises NoIndex."""
    found = yield from store.ask_many(tuple(calls))
    return [_checked(store, index, call, answer) for call, answer in zip(calls, found, strict=True)]


def _checked(store: DynamoTable, index: str, call: Call, answer: ServiceAnswer | StoreError) -> ServiceAnswer:
    if isinstance(answer, StoreError):
        raise answer
    if answer.status == 200:
        return answer
    why = message_of(answer)
    if _BUILDING in why:
        raise NoIndex(f"ledger {store.url}: DynamoDB still builds the index {index} ({why}); ask again in some minutes")
    if code_of(answer) != "Validation" or "index" not in why:
        raise store.failure(call, answer)
    named, option = ("of messages", "") if index == MESSAGES else (index, " --index")
    raise NoIndex(
        f"ledger {store.url}: the table has no index {named} ({why}). `onceward init{option} --store '{store.url}'` makes it, and "
        "leaves everything else as it is"
    )


def number_in(store: DynamoTable, item: Item, field: str) -> float:
    """Return a number of an entry. Raises StoreError."""
    try:
        return float(str(item[store.layout.names[field]]["N"]))
    except (LookupError, ValueError) as error:
        raise StoreError(f"ledger {store.url}: an index has an item without {field}") from error
