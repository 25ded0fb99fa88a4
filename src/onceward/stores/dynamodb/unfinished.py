"""Finding and counting what is not completed in a DynamoDB table, by an optional sparse index.

The index has the items with the attribute :data:`OPEN`: a status and a shard. Its range is the record's key. It also has the
status itself, which a worker without ``index=open`` writes, too; where the two differ, the entry is left out.
The index can be late, so it only hints at records: a consistent read of each follows.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from onceward.core import protocol
from onceward.core.comparisons import meets
from onceward.core.drivers import Steps
from onceward.core.record import COMPLETED, IN_PROGRESS
from onceward.core.views import Criteria
from onceward.errors import StoreError
from onceward.stores.contract import NoIndex, Page
from onceward.stores.dynamodb.items import OPEN, SHARDS, Item, number
from onceward.stores.dynamodb.reader import DynamoReader, resumed, token
from onceward.stores.dynamodb.replies import page as page_of
from onceward.stores.dynamodb.requests import DYNAMODB, Body
from onceward.stores.survey import READ
from onceward.wire.calls import Call, ServiceAnswer
from onceward.wire.codes import code_of, message_of

INDEX: Final = "onceward_open"
STATUSES: Final = protocol.STATUSES - {COMPLETED}
_LOOKED: Final = 1000  # entries of a shard among which a page of LAPSED is looked for
_BUILDING: Final = "backfilling"  # in the answer of an index that DynamoDB still makes


class Tally(NamedTuple):
    """How many records are not completed.

    Attributes:
        counts: by status, and LAPSED.
        least: those of them that are larger than what was counted.
    """

    counts: dict[str, int]
    least: frozenset[str]


def find(store: DynamoReader, criteria: Criteria, prefix: str, after: str | None, limit: int) -> Steps[Page]:
    """Read one page of the records that ``criteria`` mean, in the order of their keys. They mean none that is completed."""
    yield from store.learn_time()
    now, layout = store.clock.earliest(), store.layout
    start = None if after is None else layout.key_in(resumed(after))
    statuses = [one for one in sorted(STATUSES) if any(_means(state, one) for state in criteria.states)]
    lapsed = now if set(criteria.states) == {"LAPSED"} else None
    most = limit if lapsed is None else max(limit, _LOOKED)
    calls = [_query(store, one, n, prefix, start, most, lapsed) for one in statuses for n in range(SHARDS)]
    keys: set[str] = set()
    ends: list[str] = []
    for answer in (yield from _answers(store, calls)):
        items, last = page_of(answer)
        keys |= {layout.key_in(item) for item in items}
        ends += [] if last is None else [layout.key_in(last)]
    # What comes after the end of a shard's page is not known yet.
    known = sorted(keys if not ends else {key for key in keys if key <= min(ends)})
    following = known[limit - 1] if len(known) > limit else min(ends, default=None)
    records, damaged = yield from store.hinted(known[:limit])
    records = [record for record in records if meets(record, criteria.clause, now)]
    return Page(records, None if following is None else token(layout.key(following)), now, damaged)


def tally(store: DynamoReader) -> Steps[Tally]:
    """Count what is not completed. Stop at about :data:`READ` records of a status."""
    yield from store.learn_time()
    now = store.clock.earliest()
    counts = dict.fromkeys((*sorted(STATUSES), "LAPSED"), 0)
    calls = {(status, n): _counting(store, status, n) for status in sorted(STATUSES) for n in range(SHARDS)}
    least: set[str] = set()
    while calls:
        answers = yield from _answers(store, list(calls.values()))
        further: dict[tuple[str, int], Call] = {}
        for ((status, shard), call), answer in zip(calls.items(), answers, strict=True):
            items, last = page_of(answer)
            if status == IN_PROGRESS:  # its leases tell what is lapsed
                counts["LAPSED"] += sum(_lease(store, item) <= now for item in items)
            counts[status] += len(items) if status == IN_PROGRESS else _counted(store, answer)
            if last is not None:
                further[status, shard] = Call(DYNAMODB, "Query", {**call.body, "ExclusiveStartKey": last})
        least |= {status for status, _ in further if counts[status] >= READ}
        calls = {place: call for place, call in further.items() if place[0] not in least}
    return Tally(counts, frozenset(least | ({"LAPSED"} if IN_PROGRESS in least else set())))


def _means(state: str, status: str) -> bool:
    return Criteria((state,)).are_within(frozenset({status}))


def _query(
    store: DynamoReader, status: str, shard: int, prefix: str, after: str | None, limit: int, lapsed: float | None
) -> Call:
    """Ask for the entries of a status and a shard, in the order of their keys."""
    layout, body = store.layout, _entries(store, status, shard)
    if start := layout.holder.prefix + prefix:
        body["KeyConditionExpression"] += " AND begins_with(#k, :k)"
        body["ExpressionAttributeNames"]["#k"] = layout.holder.name
        body["ExpressionAttributeValues"][":k"] = {"S": start}
    if lapsed is not None:
        body["FilterExpression"] += " AND #l <= :l"
        body["ExpressionAttributeNames"]["#l"] = layout.names["lease_until"]
        body["ExpressionAttributeValues"][":l"] = {"N": number(lapsed)}
    if after is not None:
        body["ExclusiveStartKey"] = {**layout.key(after), OPEN: {"S": layout.open_text(status, shard)}}
    return Call(DYNAMODB, "Query", {**body, "Limit": limit})


def _counting(store: DynamoReader, status: str, shard: int) -> Call:
    body = _entries(store, status, shard)
    if status != IN_PROGRESS:
        return Call(DYNAMODB, "Query", {**body, "Select": "COUNT"})
    body["ExpressionAttributeNames"]["#l"] = store.layout.names["lease_until"]
    return Call(DYNAMODB, "Query", {**body, "ProjectionExpression": "#l"})


def _entries(store: DynamoReader, status: str, shard: int) -> Body:
    return {
        **store.requests.common,
        "IndexName": INDEX,
        "KeyConditionExpression": "#o = :o",
        "FilterExpression": "#s = :s",
        "ExpressionAttributeNames": {"#o": OPEN, "#s": store.layout.status},
        "ExpressionAttributeValues": {":o": {"S": store.layout.open_text(status, shard)}, ":s": {"S": status}},
    }


def _answers(store: DynamoReader, calls: Sequence[Call]) -> Steps[list[ServiceAnswer]]:
    answers = yield from store.ask_many(tuple(calls))
    return [_checked(store, call, answer) for call, answer in zip(calls, answers, strict=True)]


def _checked(store: DynamoReader, call: Call, answer: ServiceAnswer | StoreError) -> ServiceAnswer:
    if isinstance(answer, StoreError):
        raise answer
    if answer.status == 200:
        return answer
    why = message_of(answer)
    if _BUILDING in why:
        raise NoIndex(f"ledger {store.url}: DynamoDB still builds the index {INDEX}; ask again in some minutes")
    if code_of(answer) == "Validation" and "index" in why:
        raise NoIndex(
            f"ledger {store.url}: the table has no index {INDEX} ({why}). `onceward init --index --store '{store.url}'` makes it"
        )
    raise store.failure(call, answer)


def _counted(store: DynamoReader, answer: ServiceAnswer) -> int:
    count = answer.body.get("Count") if isinstance(answer.body, dict) else None
    if not isinstance(count, int):
        raise StoreError(f"ledger {store.url}: an answer of its index {INDEX} has no count", transient=True)
    return count


def _lease(store: DynamoReader, item: Item) -> float:
    try:
        return float(str(item[store.layout.names["lease_until"]]["N"]))
    except (LookupError, ValueError) as error:
        raise StoreError(f"ledger {store.url}: its index {INDEX} has an item without a lease") from error
