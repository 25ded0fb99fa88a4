"""Reading pages of records, by an index if one has them.

For all else DynamoDB reads the whole table, charges for it, and returns what a filter lets through, in its own order.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple, cast

from onceward.core.comparisons import Clause, Comparison, Every
from onceward.core.drivers import Steps
from onceward.core.origin import beginning
from onceward.core.protocol import SOME_DAY
from onceward.core.record import IN_PROGRESS
from onceward.core.selections import ByKey, ChainOf, DueWithin, Selection
from onceward.core.views import ANY, Criteria
from onceward.errors import StoreError
from onceward.stores.contract import NoIndex, Page
from onceward.stores.dynamodb.indexes import (
    MESSAGES,
    OPEN_INDEX,
    answers,
    messages,
    number_in,
    unfinished,
)
from onceward.stores.dynamodb.items import OPEN, SHARDS, Item, Layout
from onceward.stores.dynamodb.replies import page as page_of
from onceward.stores.dynamodb.requests import DYNAMODB, Terms
from onceward.stores.dynamodb.table import DynamoTable, resumed, token
from onceward.stores.survey import NOTHING, UNFINISHED, Survey
from onceward.wire.calls import Call, ServiceAnswer

_SCANNED: Final = 1000  # items that one page looks at, at most
_LOOKED: Final = 1000  # entries of a shard among which a page of LAPSED is looked for
_AHEAD: Final = 3600.0  # seconds: messages that are due later do not tell how long to wait
_EVER: Final = 1e14  # seconds since the epoch


def select(store: DynamoTable, selection: Selection, after: str | None, limit: int) -> Steps[Page]:
    """Read one page. Without an index it is one request, of at most 1 MB."""
    if isinstance(selection, DueWithin):
        return (yield from _messages(store, selection, after, limit))
    if isinstance(selection, ByKey) and store.layout.lists_open and selection.criteria != ANY:
        if selection.criteria.are_within(UNFINISHED):
            return (yield from _unfinished(store, selection, after, limit))
        if selection.criteria.are_about_messages:
            with suppress(NoIndex):  # which a former version's table has not
                return (yield from _messages(store, selection, after, limit))
    return (yield from _scanned(store, selection, after, limit))


class _Entry(NamedTuple):
    """An entry of the index of messages."""

    due_at: float
    key: str
    shard: int
    place: Item


def _messages(store: DynamoTable, selection: ByKey | DueWithin, after: str | None, limit: int) -> Steps[Page]:
    """Read records with messages, the longest due first."""
    yield from store.learn_time()
    now = store.clock.earliest()
    if isinstance(selection, DueWithin):
        prefix, (least, most), ahead = "", (0.0, now + selection.seconds), _AHEAD
    else:
        prefix, (least, most), ahead = selection.prefix, times_of(selection.criteria.states, now), 0.0
    starts: list[Item | None] = [None] * SHARDS if after is None else json.loads(after)
    calls = [messages(store, n, (least, most + ahead), start, Limit=limit) for n, start in enumerate(starts)]
    pages = [page_of(answer) for answer in (yield from answers(store, MESSAGES, calls))]
    entries = [
        _Entry(number_in(store, item, "due_at"), store.layout.key_in(item), shard, item)
        for shard, (items, _) in enumerate(pages)
        for item in items
    ]
    entries.sort(key=lambda one: one[:2])
    over = [one for one in entries if one.due_at <= most]
    more = len(over) > limit or any(last and number_in(store, last, "due_at") <= most for _, last in pages)
    for one in over[:limit]:
        starts[one.shard] = one.place
    records, damaged = yield from store.hinted([one.key for one in over[:limit] if one.key.startswith(prefix)])
    # Somebody may send the others by now.
    records = sorted((one for one in records if selection.means(one, now)), key=lambda one: (one.due_at, one.key))
    following = json.dumps(starts, separators=(",", ":")) if more else None
    return Page(
        records, following, now, damaged, next((one.due_at - now for one in entries if one.due_at > most), None)
    )


def times_of(states: tuple[str, ...], now: float) -> tuple[float, float]:
    """Return between which times messages are due that are UNSENT, REFUSED, or either."""
    some_day = now + SOME_DAY
    return (some_day if "UNSENT" not in states else 0.0), (some_day if "REFUSED" not in states else _EVER)


def _unfinished(store: DynamoTable, selection: ByKey, after: str | None, limit: int) -> Steps[Page]:
    """Read records that are not completed, in the order of their keys."""
    yield from store.learn_time()
    now, layout, states = store.clock.earliest(), store.layout, selection.criteria.states
    start = None if after is None else layout.key_in(resumed(after))
    statuses = [one for one in sorted(UNFINISHED) if any(_means(state, one) for state in states)]
    lapsed = now if set(states) == {"LAPSED"} else None
    most = limit if lapsed is None else max(limit, _LOOKED)
    calls = []
    for status in statuses:
        for shard in range(SHARDS):
            place = None if start is None else {**layout.key(start), OPEN: {"S": layout.open_text(status, shard)}}
            calls.append(unfinished(store, status, shard, place, prefix=selection.prefix, lapsed=lapsed, Limit=most))
    pages = [page_of(answer) for answer in (yield from answers(store, OPEN_INDEX, calls))]
    keys = {layout.key_in(item) for items, _ in pages for item in items}
    # What comes after the end of a shard's page is not known yet.
    end = min((layout.key_in(last) for _, last in pages if last is not None), default=None)
    known = sorted(key for key in keys if end is None or key <= end)
    following = known[limit - 1] if len(known) > limit else end
    records, damaged = yield from store.hinted(known[:limit])
    records = [record for record in records if selection.means(record, now)]
    return Page(records, None if following is None else token(layout.key(following)), now, damaged)


def _means(state: str, status: str) -> bool:
    return Criteria((state,)).are_within(frozenset({status}))


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
    elif criteria is not None and criteria != ANY and not store.layout.statuses:  # others spell theirs in other ways
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


# --- what a ledger holds, in bounded time: only one with ``index=open`` can tell ------------------------------------------


def survey(store: DynamoTable) -> Steps[Survey]:
    """Count what is not completed, and messages, by their indexes. Of each shard of an index, DynamoDB counts 1 MB."""
    if not store.layout.lists_open:
        return NOTHING
    yield from store.learn_time()
    now, shards = store.clock.earliest(), range(SHARDS)
    of_open = {one: [unfinished(store, one, n, Select="COUNT") for n in shards] for one in sorted(UNFINISHED)}
    of_open["LAPSED"] = [unfinished(store, IN_PROGRESS, n, lapsed=now, Select="COUNT") for n in shards]
    of_messages = {
        state: [messages(store, n, times_of((state,), now), None, Select="COUNT") for n in shards]
        for state in ("UNSENT", "REFUSED")
    }
    counts: dict[str, int] = {}
    least: set[str] = set()
    for index, calls in ((OPEN_INDEX, of_open), (MESSAGES, of_messages)):
        try:
            found = yield from answers(store, index, [call for of_state in calls.values() for call in of_state])
        except NoIndex:
            continue
        for state, answer in zip((state for state in calls for _ in shards), found, strict=True):
            counts[state] = counts.get(state, 0) + _counted(store, answer)
            least |= {state} if page_of(answer)[1] is not None else set()
    if not counts.keys() >= UNFINISHED:
        return NOTHING
    total = yield from _total(store)
    if total is not None:
        total = max(total, sum(counts[status] for status in UNFINISHED))
    return Survey(UNFINISHED, False, counts, total, False, None, now, frozenset(least))


def _counted(store: DynamoTable, answer: ServiceAnswer) -> int:
    count = answer.body.get("Count") if isinstance(answer.body, dict) else None
    if not isinstance(count, int):
        raise StoreError(f"ledger {store.url}: the answer of an index has no count", transient=True)
    return count


def _total(store: DynamoTable) -> Steps[int | None]:
    """Return DynamoDB's own count, some six hours old. None: the table has other items, or that may not be asked."""
    if any(part.prefix for part in store.layout.parts):
        return None
    answer = yield from store.ask(Call(DYNAMODB, "DescribeTable", {"TableName": store.requests.table}), gone=400)
    if answer.status != 200:
        return None
    described = cast("Mapping[str, Mapping[str, object]]", answer.body)["Table"]
    return int(str(described.get("ItemCount", 0)))
