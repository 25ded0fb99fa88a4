"""The sparse index of a table: of messages that are due.

It has the items that have a shard: shards spread the writes over DynamoDB's partitions. A record has one while it has a
``due_at``. The index can be late, so it only hints at records: a consistent read of each follows.
"""

from collections.abc import Sequence
from typing import Final

from onceward.core.drivers import Steps
from onceward.errors import StoreError
from onceward.stores.contract import NoIndex
from onceward.stores.dynamodb.items import Item
from onceward.stores.dynamodb.requests import DYNAMODB, Terms
from onceward.stores.dynamodb.table import DynamoTable
from onceward.wire.calls import Call, ServiceAnswer
from onceward.wire.codes import code_of, message_of

MESSAGES: Final = "onceward_due"  # its range is due_at
_BUILDING: Final = "backfilling"  # in the answer of an index that DynamoDB still makes


def outbox(store: DynamoTable) -> Steps[None]:
    """Check that the index of messages is there, or is being made (:data:`onceward.stores.capabilities.OUTBOX`)."""
    try:
        yield from answers(store, [messages(store, 0, 0.0, None, 1)])
    except NoIndex as error:
        if _BUILDING not in str(error):
            raise


def messages(store: DynamoTable, shard: int, until: float, start: Item | None, limit: int) -> Call:
    """Ask for the entries of one shard that are due by a time, the longest due first."""
    layout, terms = store.layout, Terms()
    due = terms.compared(layout.names["due_at"], "<=", until)
    keys = f"{terms.compared(layout.shard, '=', layout.shard_text(shard))} AND {due}"
    begin = {} if start is None else {"ExclusiveStartKey": start}
    query = {"IndexName": MESSAGES, "Limit": limit, **terms.body(KeyConditionExpression=keys), **begin}
    return Call(DYNAMODB, "Query", {**store.requests.common, **query})


def answers(store: DynamoTable, calls: Sequence[Call]) -> Steps[list[ServiceAnswer]]:
    """Send queries of the index in parallel. Raises NoIndex."""
    found = yield from store.ask_many(tuple(calls))
    return [_checked(store, call, answer) for call, answer in zip(calls, found, strict=True)]


def _checked(store: DynamoTable, call: Call, answer: ServiceAnswer | StoreError) -> ServiceAnswer:
    if isinstance(answer, StoreError):
        raise answer
    if answer.status == 200:
        return answer
    why = message_of(answer)
    if _BUILDING in why:
        raise NoIndex(
            f"ledger {store.url}: DynamoDB still builds the index {MESSAGES} ({why}); ask again in some minutes"
        )
    if code_of(answer) != "Validation" or "index" not in why:
        raise store.failure(call, answer)
    raise NoIndex(
        f"ledger {store.url}: the table has no index of messages ({why}). `onceward init --store '{store.url}'` makes it, and "
        "leaves everything else as it is"
    )


def due_in(store: DynamoTable, item: Item) -> float:
    """Return when an entry is due. Raises StoreError."""
    try:
        return float(str(item[store.layout.names["due_at"]]["N"]))
    except (LookupError, ValueError) as error:
        raise StoreError(f"ledger {store.url}: an index has an item without due_at") from error
