"""Reading pages of records: messages that are due by their index, all else by reading the whole table.

The index has the items that have a shard: shards spread the writes over DynamoDB's partitions. A record has one while it has
a ``due_at``. The index can be late, so it only hints at records: a consistent read of each follows.

Of the table, DynamoDB charges for all that it reads, and returns what a filter lets through, in its own order.
"""

import json
from collections.abc import Sequence
from typing import Final

from onceward.core.comparisons import Clause, Comparison, Every
from onceward.core.drivers import Steps
from onceward.core.selections import ByKey, ChainOf, DueWithin, Selection
from onceward.core.views import ANY
from onceward.errors import StoreError
from onceward.stores.contract import DamagedRecord, NoIndex, Page
from onceward.stores.dynamodb.items import SHARDS, Item, Layout
from onceward.stores.dynamodb.requests import DYNAMODB, Terms
from onceward.stores.dynamodb.table import DynamoTable, resumed, token
from onceward.stores.dynamodb.table import page as page_of
from onceward.wire.calls import Call, ServiceAnswer, code_of, message_of

MESSAGES: Final = "onceward_due"  # the index; its range is due_at
_BUILDING: Final = "backfilling"  # in the answer of an index that DynamoDB still makes
_SCANNED: Final = 1000  # items that one page looks at, at most
_AHEAD: Final = 3600.0  # seconds: messages that are due later do not tell how long to wait


def select(store: DynamoTable, selection: Selection, after: str | None, limit: int) -> Steps[Page]:
    """Read one page. Without an index it is one request, of at most 1 MB."""
    if isinstance(selection, DueWithin):
        return _messages(store, selection, after, limit)
    if isinstance(selection, ChainOf):
        raise NoIndex(f"ledger {store.url}: DynamoDB has no index of chains")
    return _scan(store, selection, after, limit)


def outbox(store: DynamoTable) -> Steps[None]:
    """Check that the index of messages is there, or is being made (:data:`onceward.stores.capabilities.OUTBOX`)."""
    try:
        yield from _entries(store, [None], 0.0, 1)
    except NoIndex as error:
        if _BUILDING not in str(error):
            raise


def _messages(store: DynamoTable, selection: DueWithin, after: str | None, limit: int) -> Steps[Page]:
    """Read records with messages, the longest due first."""
    yield from store.learn_time()
    now = store.clock.earliest()
    most = now + selection.seconds
    starts: list[Item | None] = [None] * SHARDS if after is None else json.loads(after)
    pages = yield from _entries(store, starts, most + _AHEAD, limit)
    entries = sorted(
        (
            (_due_in(store, item), store.layout.key_in(item), shard, item)
            for shard, (items, _) in enumerate(pages)
            for item in items
        ),
        key=lambda entry: entry[:2],
    )
    over = [entry for entry in entries if entry[0] <= most]
    for _, _, shard, item in over[:limit]:
        starts[shard] = item
    more = len(over) > limit or any(last and _due_in(store, last) <= most for _, last in pages)
    records, damaged = [], []
    for answer in (yield from store.look_many([key for _, key, _, _ in over[:limit]])).values():
        if isinstance(answer, DamagedRecord):
            damaged.append(answer.damaged)
        elif isinstance(answer, StoreError):
            raise answer
        elif answer.record is not None and selection.means(answer.record, now):  # somebody may have sent it by now
            records.append(answer.record)
    records.sort(key=lambda record: (record.due_at, record.key))
    following = json.dumps(starts, separators=(",", ":")) if more else None
    return Page(records, following, now, damaged, next((due_at - now for due_at, *_ in entries if due_at > most), None))


def _entries(
    store: DynamoTable, starts: Sequence[Item | None], until: float, limit: int
) -> Steps[list[tuple[list[Item], Item | None]]]:
    """Read the entries of the first shards that are due by a time, the longest due first. Raises NoIndex."""
    layout, calls = store.layout, []
    for shard, start in enumerate(starts):
        terms = Terms()
        of_shard = terms.compared(layout.shard, "=", layout.shard_text(shard))
        keys = f"{of_shard} AND {terms.compared(layout.names['due_at'], '<=', until)}"
        begin = {} if start is None else {"ExclusiveStartKey": start}
        query = {"IndexName": MESSAGES, "Limit": limit, **terms.body(KeyConditionExpression=keys), **begin}
        calls.append(Call(DYNAMODB, "Query", {**store.requests.common, **query}))
    answers = yield from store.ask_many(tuple(calls))
    return [page_of(_check(store, call, answer)) for call, answer in zip(calls, answers, strict=True)]


def _check(store: DynamoTable, call: Call, answer: ServiceAnswer | StoreError) -> ServiceAnswer:
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


def _due_in(store: DynamoTable, item: Item) -> float:
    try:
        return float(str(item[store.layout.names["due_at"]]["N"]))
    except (LookupError, ValueError) as error:
        raise StoreError(f"ledger {store.url}: an index has an item without due_at") from error


def _scan(store: DynamoTable, selection: ByKey, after: str | None, limit: int) -> Steps[Page]:
    """Read a page of the table: some items, or of those that a filter lets through, what is in 1 MB."""
    prefix, criteria = selection
    if criteria != ANY:
        yield from store.learn_time()
    now, terms = store.clock.earliest(), store.requests.having(prefix)
    if criteria != ANY and not store.layout.shared:  # another system has other attributes
        terms.add(_expression(criteria.clause, store.layout, now, terms))
    most = min(limit, _SCANNED) if criteria == ANY else None
    items, last = page_of(
        (yield from store.ask(store.requests.scan(None if after is None else resumed(after), most, terms)))
    )
    candidates, damaged = store.sorted_out(items)
    now = max(now, store.clock.earliest())
    # DynamoDB's filter may let other keys through.
    records = [record for record in candidates if selection.means(record, now)]
    if len(records) > limit:
        records = records[:limit]
        last = store.layout.key(records[-1].key)
    return Page(records, token(last), now, tuple(one for one in damaged if one.key.startswith(prefix)))


def _expression(clause: Clause, layout: Layout, now: float, terms: Terms) -> str:
    if isinstance(clause, Comparison):
        name = layout.names[clause.field]
        if clause.sign == "absent":
            return f"attribute_not_exists({terms.name(name)})"
        value = clause.value if isinstance(clause.value, str) else now - clause.value
        return terms.compared(name, clause.sign, value)
    texts = [_expression(term, layout, now, terms) for term in clause.terms]
    word = " AND " if isinstance(clause, Every) else " OR "
    return texts[0] if len(texts) == 1 else f"({word.join(texts)})"  # DynamoDB refuses double parentheses
