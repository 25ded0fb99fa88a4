"""Finding the records of a DynamoDB table whose messages are due, by a sparse index.

The index has the items that have a shard, which a record has only while it has a ``due_at``. Its shards spread the writes over
DynamoDB's partitions. It can be late, so what it says is a hint: a consistent read of each record follows.
"""

import json
from collections.abc import Sequence
from typing import Final, NamedTuple, cast

from onceward.core.drivers import Steps
from onceward.core.record import Record
from onceward.errors import StoreError
from onceward.stores.contract import Damaged, DamagedRecord, DuePage
from onceward.stores.dynamodb import batch
from onceward.stores.dynamodb.items import SHARDS, Item, number
from onceward.stores.dynamodb.replies import page as page_of
from onceward.stores.dynamodb.requests import DYNAMODB, Body
from onceward.stores.dynamodb.store import DynamoStore
from onceward.wire.calls import Call
from onceward.wire.codes import code_of, message_of

INDEX: Final = "onceward_due"
_AHEAD: Final = 3600.0  # seconds: messages that are due later do not tell how long to wait
_BUILDING: Final = "backfilling"  # in the answer of an index that DynamoDB still makes


class Hint(NamedTuple):
    """An entry of the index."""

    due_at: float
    key: str
    shard: int
    place: Item


def outbox(store: DynamoStore) -> Steps[None]:
    """Check that the index is there (:data:`onceward.stores.capabilities.OUTBOX`)."""
    if store.layout.shard is None:
        raise StoreError(
            f"ledger {store.url}: another system writes to this table, and would lose messages. Give the guards that send a "
            "table of their own"
        )
    call = query(store, 0, None, (0.0, 0.0), 1)
    answer = yield from store.ask(call, gone=400)
    if answer.status == 200 or _BUILDING in message_of(answer):
        return
    if code_of(answer) != "Validation":
        raise store.failure(call, answer)
    raise StoreError(
        f"ledger {store.url}: the table has no index of messages ({message_of(answer)}). `onceward init --store '{store.url}'` "
        "makes it, and leaves everything else as it is"
    )


def due(store: DynamoStore, after: str | None, limit: int, ahead: float) -> Steps[DuePage]:
    """Read the records whose messages are due (:data:`onceward.stores.capabilities.DUE`)."""
    yield from store.learn_time()
    starts = starts_of(after)
    until = store.clock.earliest() + ahead + _AHEAD
    calls = tuple(query(store, n, start, (0.0, until), limit) for n, start in enumerate(starts))
    answers = yield from store.ask_many(calls)
    now = store.clock.earliest()
    hints: list[Hint] = []
    more = False
    for shard, (call, answer) in enumerate(zip(calls, answers, strict=True)):
        if isinstance(answer, StoreError):
            raise answer
        if answer.status != 200:
            raise store.failure(call, answer)
        items, last = page_of(answer)
        hints += [hint_of(store, shard, item) for item in items]
        more = more or (last is not None and hint_of(store, shard, last).due_at <= now + ahead)
    hints.sort(key=lambda hint: hint[:2])
    over = [hint for hint in hints if hint.due_at <= now + ahead]
    wait = next((hint.due_at - now for hint in hints if hint.due_at > now + ahead), None)
    for hint in over[:limit]:
        starts[hint.shard] = hint.place
    records, damaged = yield from _read(store, [hint.key for hint in over[:limit]], now + ahead)
    following = json.dumps(starts, separators=(",", ":")) if more or len(over) > limit else None
    return DuePage(records, following, now, wait, damaged)


def _read(store: DynamoStore, keys: Sequence[str], until: float) -> Steps[tuple[list[Record], list[Damaged]]]:
    """Read records. Leave out those that are not due until then, because somebody sends them by now, or that cannot be read at this moment."""
    records: list[Record] = []
    damaged: list[Damaged] = []
    found = yield from batch.read_back(store, keys)
    for key in keys:
        reply = found.get(key)
        if isinstance(reply, DamagedRecord):
            damaged.append(reply.damaged)
        elif isinstance(reply, StoreError):
            raise reply
        elif reply is not None and (record := reply.record) is not None and (record.due_at or until + 1) <= until:
            records.append(record)
    return sorted(records, key=lambda record: (record.due_at, record.key)), damaged


def query(store: DynamoStore, shard: int, start: Item | None, between: tuple[float, float], limit: int) -> Call:
    """Ask for the items of one shard that are due between two times, the longest due first."""
    layout = store.layout
    body: Body = {
        **store.requests.common,
        "IndexName": INDEX,
        "KeyConditionExpression": "#s = :s AND #d BETWEEN :a AND :d",
        "ExpressionAttributeNames": {"#s": layout.shard, "#d": layout.names["due_at"]},
        "ExpressionAttributeValues": {
            ":s": {"S": layout.shard_text(shard)},
            **{name: {"N": number(time)} for name, time in zip((":a", ":d"), between, strict=True)},
        },
        "Limit": limit,
    }
    return Call(DYNAMODB, "Query", body if start is None else {**body, "ExclusiveStartKey": start})


def hint_of(store: DynamoStore, shard: int, item: Item) -> Hint:
    """Return an item as an entry. Raises StoreError."""
    layout = store.layout
    try:
        due_at = float(cast("str", item[layout.names["due_at"]]["N"]))
    except (LookupError, ValueError) as error:
        raise StoreError(f"ledger {store.url}: its index {INDEX} has an item without a time") from error
    return Hint(due_at, layout.key_in(item), shard, item)


def starts_of(after: str | None) -> list[Item | None]:
    """Return where each shard's page begins."""
    return [None] * SHARDS if after is None else cast("list[Item | None]", json.loads(after))
