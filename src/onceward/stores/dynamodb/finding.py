"""Reading pages of records, by an index if one has them.

For all else DynamoDB reads the whole table, charges for it, and returns what a filter lets through, in its own order.
"""

import json
from collections.abc import Mapping
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
from onceward.stores.dynamodb.table import resumed, token
from onceward.stores.dynamodb.writer import DynamoWriter
from onceward.stores.survey import NOTHING, READ, UNFINISHED, Survey
from onceward.wire.calls import Call, ServiceAnswer

_MOST: Final = 10_000  # entries of a shard of messages that are counted
_SCANNED: Final = 1000  # items that one page looks at, at most
_LOOKED: Final = 1000  # entries of a shard among which a page of LAPSED is looked for
_AHEAD: Final = 3600.0  # seconds: messages that are due later do not tell how long to wait
_EVER: Final = 1e14  # seconds since the epoch


def select(store: DynamoWriter, selection: Selection, after: str | None, limit: int) -> Steps[Page]:
    """Read one page. Without an index it is one request, of at most 1 MB."""
    if isinstance(selection, DueWithin):
        return (yield from _messages(store, selection, after, limit))
    if isinstance(selection, ChainOf):
        return (yield from _chain(store, selection, after))
    prefix, criteria = selection
    if criteria == ANY:
        return (yield from store.read_page(store.requests.having(prefix), prefix, after, min(limit, _SCANNED)))
    if store.layout.lists_open and criteria.are_within(UNFINISHED):
        return (yield from _unfinished(store, selection, after, limit))
    if store.layout.lists_open and criteria.are_about_messages:
        try:
            return (yield from _messages(store, selection, after, limit))
        except NoIndex:  # which a former version's table has not
            pass
    return (yield from _filtered(store, selection, after, limit))


class _Entry(NamedTuple):
    """An entry of the index of messages."""

    due_at: float
    key: str
    shard: int
    place: Item


def _messages(store: DynamoWriter, selection: ByKey | DueWithin, after: str | None, limit: int) -> Steps[Page]:
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


def _unfinished(store: DynamoWriter, selection: ByKey, after: str | None, limit: int) -> Steps[Page]:
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


def _filtered(store: DynamoWriter, selection: ByKey, after: str | None, limit: int) -> Steps[Page]:
    yield from store.learn_time()
    now, terms = store.clock.earliest(), store.requests.having(selection.prefix)
    if not store.layout.statuses:  # the items of other systems spell theirs in other ways
        terms.add(_printed(selection.criteria.clause, store.layout, now, terms))
    page = yield from store.read_page(terms, selection.prefix, after, None)
    records = [record for record in page.records if selection.means(record, now)]
    if len(records) > limit:
        records = records[:limit]
        return Page(records, token(store.layout.key(records[-1].key)), now, page.damaged)
    return page._replace(records=records, now=now)


def _chain(store: DynamoWriter, chain: ChainOf, after: str | None) -> Steps[Page]:
    if not chain.scan:
        raise NoIndex(f"ledger {store.url}: DynamoDB has no index of chains")
    yield from store.learn_time()
    terms = store.requests.having("")
    terms.add(terms.begins(store.layout.names["origin"], beginning(chain.root)))
    return (yield from store.read_page(terms, "", after, None))


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


class Tally(NamedTuple):
    """How many records there are by state. ``least`` are the states of which there are more."""

    counts: dict[str, int]
    least: frozenset[str]


def survey(store: DynamoWriter) -> Steps[Survey]:
    """Count what is not completed by its index, at most about :data:`onceward.stores.survey.READ` records of a status."""
    if not store.layout.lists_open:
        return NOTHING
    try:
        found = yield from tally(store)
    except NoIndex:
        return NOTHING
    try:
        sending = yield from _tally_messages(store)
    except NoIndex:
        sending = Tally({}, frozenset())
    total = yield from _total(store)
    if total is not None:
        total = max(total, sum(found.counts[status] for status in UNFINISHED))
    counts, least = found.counts | sending.counts, found.least | sending.least
    return Survey(UNFINISHED, False, counts, total, False, None, store.clock.earliest(), least)


def tally(store: DynamoWriter) -> Steps[Tally]:
    """Count what is not completed. Stop at about :data:`READ` records of a status."""
    yield from store.learn_time()
    now = store.clock.earliest()
    counts = dict.fromkeys((*sorted(UNFINISHED), "LAPSED"), 0)
    calls = {(status, n): _counting(store, status, n) for status in sorted(UNFINISHED) for n in range(SHARDS)}
    least: set[str] = set()
    while calls:
        found = yield from answers(store, OPEN_INDEX, list(calls.values()))
        further: dict[tuple[str, int], Call] = {}
        for ((status, shard), call), answer in zip(calls.items(), found, strict=True):
            items, last = page_of(answer)
            if status == IN_PROGRESS:  # its leases tell what is lapsed
                counts["LAPSED"] += sum(number_in(store, item, "lease_until") <= now for item in items)
            counts[status] += len(items) if status == IN_PROGRESS else _counted(store, answer)
            if last is not None:
                further[status, shard] = Call(DYNAMODB, "Query", {**call.body, "ExclusiveStartKey": last})
        least |= {status for status, _ in further if counts[status] >= READ}
        calls = {place: call for place, call in further.items() if place[0] not in least}
    return Tally(counts, frozenset(least | ({"LAPSED"} if IN_PROGRESS in least else set())))


def _counting(store: DynamoWriter, status: str, shard: int) -> Call:
    call = unfinished(store, status, shard)
    return call if status == IN_PROGRESS else call._replace(body={**call.body, "Select": "COUNT"})


def _tally_messages(store: DynamoWriter) -> Steps[Tally]:
    """Count what is UNSENT or REFUSED."""
    counts: dict[str, int] = {}
    least: set[str] = set()
    for state in ("UNSENT", "REFUSED"):
        times = times_of((state,), store.clock.earliest())
        calls = [messages(store, n, times, None, Limit=_MOST, Select="COUNT") for n in range(SHARDS)]
        found = yield from answers(store, MESSAGES, calls)
        counts[state] = sum(_counted(store, answer) for answer in found)
        least |= {state for answer in found if page_of(answer)[1] is not None}
    return Tally(counts, frozenset(least))


def _counted(store: DynamoWriter, answer: ServiceAnswer) -> int:
    count = answer.body.get("Count") if isinstance(answer.body, dict) else None
    if not isinstance(count, int):
        raise StoreError(f"ledger {store.url}: the answer of an index has no count", transient=True)
    return count


def _total(store: DynamoWriter) -> Steps[int | None]:
    """Return DynamoDB's own count, some six hours old. None: the table has other items, or that may not be asked."""
    if any(part.prefix for part in store.layout.parts):
        return None
    answer = yield from store.ask(Call(DYNAMODB, "DescribeTable", {"TableName": store.requests.table}), gone=400)
    if answer.status != 200:
        return None
    described = cast("Mapping[str, Mapping[str, object]]", answer.body)["Table"]
    return int(str(described.get("ItemCount", 0)))
