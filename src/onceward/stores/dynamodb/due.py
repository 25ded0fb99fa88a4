"""Finding the records of a DynamoDB table whose messages are due, by a sparse index.

The index has the items that have a shard, which a record has only while it has a ``due_at``. Its shards spread the writes over
DynamoDB's partitions. It can be late, so what it says is a hint: a consistent read of each record follows.
"""

import json
from typing import Final, NamedTuple, cast

from onceward.core.drivers import Steps
from onceward.core.selections import DueWithin
from onceward.errors import StoreError
from onceward.stores.contract import Page
from onceward.stores.dynamodb.items import SHARDS, Item, number
from onceward.stores.dynamodb.reader import DynamoReader
from onceward.stores.dynamodb.replies import page as page_of
from onceward.stores.dynamodb.requests import DYNAMODB, Body
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


def outbox(store: DynamoReader) -> Steps[None]:
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


def find_due(store: DynamoReader, due: DueWithin, after: str | None, limit: int) -> Steps[Page]:
    """Read the records whose messages are due."""
    yield from store.learn_time()
    starts, ahead = starts_of(after), due.seconds
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
    records, damaged = yield from store.hinted([hint.key for hint in over[:limit]])
    # Somebody may send the others by now.
    records = sorted((one for one in records if due.means(one, now)), key=lambda one: (one.due_at, one.key))
    following = json.dumps(starts, separators=(",", ":")) if more or len(over) > limit else None
    return Page(records, following, now, damaged, wait)


def query(store: DynamoReader, shard: int, start: Item | None, between: tuple[float, float], limit: int) -> Call:
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


def hint_of(store: DynamoReader, shard: int, item: Item) -> Hint:
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
