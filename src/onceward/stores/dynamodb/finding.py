"""Reading pages of records, by an index if one has them.

For all else DynamoDB reads the whole table, charges for it, and returns what a filter lets through, in its own order.
"""

import json
from typing import Final, NamedTuple

from onceward.core.comparisons import Clause, Comparison, Every
from onceward.core.drivers import Steps
from onceward.core.origin import beginning
from onceward.core.selections import ByKey, ChainOf, DueWithin, Selection
from onceward.core.views import ANY
from onceward.stores.contract import NoIndex, Page
from onceward.stores.dynamodb.indexes import answers, due_in, messages
from onceward.stores.dynamodb.items import SHARDS, Item, Layout
from onceward.stores.dynamodb.replies import page as page_of
from onceward.stores.dynamodb.requests import Terms
from onceward.stores.dynamodb.table import DynamoTable, resumed, token

_SCANNED: Final = 1000  # items that one page looks at, at most
_AHEAD: Final = 3600.0  # seconds: messages that are due later do not tell how long to wait


def select(store: DynamoTable, selection: Selection, after: str | None, limit: int) -> Steps[Page]:
    """Read one page. Without an index it is one request, of at most 1 MB."""
    if isinstance(selection, DueWithin):
        return (yield from _messages(store, selection, after, limit))
    return (yield from _scanned(store, selection, after, limit))


class _Entry(NamedTuple):
    """An entry of the index of messages."""

    due_at: float
    key: str
    shard: int
    place: Item


def _messages(store: DynamoTable, selection: DueWithin, after: str | None, limit: int) -> Steps[Page]:
    """Read records with messages, the longest due first."""
    yield from store.learn_time()
    now = store.clock.earliest()
    most = now + selection.seconds
    starts: list[Item | None] = [None] * SHARDS if after is None else json.loads(after)
    calls = [messages(store, n, most + _AHEAD, start, limit) for n, start in enumerate(starts)]
    pages = [page_of(answer) for answer in (yield from answers(store, calls))]
    entries = [
        _Entry(due_in(store, item), store.layout.key_in(item), shard, item)
        for shard, (items, _) in enumerate(pages)
        for item in items
    ]
    entries.sort(key=lambda one: one[:2])
    over = [one for one in entries if one.due_at <= most]
    more = len(over) > limit or any(last and due_in(store, last) <= most for _, last in pages)
    for one in over[:limit]:
        starts[one.shard] = one.place
    records, damaged = yield from store.hinted([one.key for one in over[:limit]])
    # Somebody may send the others by now.
    records = sorted((one for one in records if selection.means(one, now)), key=lambda one: (one.due_at, one.key))
    following = json.dumps(starts, separators=(",", ":")) if more else None
    return Page(
        records, following, now, damaged, next((one.due_at - now for one in entries if one.due_at > most), None)
    )


def _scanned(store: DynamoTable, selection: ByKey | ChainOf, after: str | None, limit: int) -> Steps[Page]:
    """Read a page of the table: some items, or of those that a filter lets through, what is in 1 MB."""
    if isinstance(selection, ChainOf):
        if not selection.scan:
            raise NoIndex(f"ledger {store.url}: DynamoDB has no index of chains")
        prefix, criteria = "", None
    else:
        prefix, criteria = selection
    if criteria != ANY:
        yield from store.learn_time()
    now, terms = store.clock.earliest(), store.requests.having(prefix)
    if isinstance(selection, ChainOf):
        terms.add(terms.begins(store.layout.names["origin"], beginning(selection.root)))
    elif criteria is not None and criteria != ANY and not store.layout.shared:  # another system has other attributes
        terms.add(_printed(criteria.clause, store.layout, now, terms))
    most = min(limit, _SCANNED) if criteria == ANY else None
    items, last = page_of(
        (yield from store.ask(store.requests.scan(None if after is None else resumed(after), most, terms)))
    )
    found, damaged = store.sorted_out(items)
    now = max(now, store.clock.earliest())
    # DynamoDB's filter may let other keys through.
    records = [record for record in found if selection.means(record, now)]
    if len(records) > limit and criteria is not None:
        records = records[:limit]
        last = store.layout.key(records[-1].key)
    return Page(records, token(last), now, tuple(one for one in damaged if one.key.startswith(prefix)))


def _printed(clause: Clause, layout: Layout, now: float, terms: Terms) -> str:
    if isinstance(clause, Comparison):
        name = layout.names[clause.field]
        if clause.sign == "absent":
            return f"attribute_not_exists({terms.name(name)})"
        value = clause.value if isinstance(clause.value, str) else now - clause.value
        return terms.compared(name, clause.sign, value)
    printed = [_printed(term, layout, now, terms) for term in clause.terms]
    word = " AND " if isinstance(clause, Every) else " OR "
    return printed[0] if len(printed) == 1 else f"({word.join(printed)})"  # DynamoDB refuses double parentheses
