"""What a DynamoDB ledger holds, in bounded time (:data:`onceward.stores.capabilities.SURVEY`).

Only a ledger with ``index=open`` can tell.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple, cast

from onceward.core.drivers import Steps
from onceward.core.record import IN_PROGRESS
from onceward.errors import StoreError
from onceward.stores.contract import NoIndex
from onceward.stores.dynamodb.finding import times_of
from onceward.stores.dynamodb.indexes import (
    MESSAGES,
    OPEN_STATUSES,
    UNFINISHED,
    answers,
    messages,
    number_in,
    unfinished,
)
from onceward.stores.dynamodb.items import SHARDS
from onceward.stores.dynamodb.reader import DynamoReader
from onceward.stores.dynamodb.replies import page
from onceward.stores.dynamodb.requests import DYNAMODB
from onceward.stores.survey import NOTHING, READ, Survey
from onceward.wire.calls import Call, ServiceAnswer

_MOST: Final = 10_000  # entries of a shard of messages that are counted


class Tally(NamedTuple):
    """How many records there are by state. ``least`` are the states of which there are more."""

    counts: dict[str, int]
    least: frozenset[str]


def survey(store: DynamoReader) -> Steps[Survey]:
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
        total = max(total, sum(found.counts[status] for status in OPEN_STATUSES))
    counts, least = found.counts | sending.counts, found.least | sending.least
    return Survey(OPEN_STATUSES, False, counts, total, False, None, store.clock.earliest(), least)


def tally(store: DynamoReader) -> Steps[Tally]:
    """Count what is not completed. Stop at about :data:`READ` records of a status."""
    yield from store.learn_time()
    now = store.clock.earliest()
    counts = dict.fromkeys((*sorted(OPEN_STATUSES), "LAPSED"), 0)
    calls = {(status, n): _counting(store, status, n) for status in sorted(OPEN_STATUSES) for n in range(SHARDS)}
    least: set[str] = set()
    while calls:
        found = yield from answers(store, UNFINISHED, list(calls.values()))
        further: dict[tuple[str, int], Call] = {}
        for ((status, shard), call), answer in zip(calls.items(), found, strict=True):
            items, last = page(answer)
            if status == IN_PROGRESS:  # its leases tell what is lapsed
                counts["LAPSED"] += sum(number_in(store, item, "lease_until") <= now for item in items)
            counts[status] += len(items) if status == IN_PROGRESS else _counted(store, answer)
            if last is not None:
                further[status, shard] = Call(DYNAMODB, "Query", {**call.body, "ExclusiveStartKey": last})
        least |= {status for status, _ in further if counts[status] >= READ}
        calls = {place: call for place, call in further.items() if place[0] not in least}
    return Tally(counts, frozenset(least | ({"LAPSED"} if IN_PROGRESS in least else set())))


def _counting(store: DynamoReader, status: str, shard: int) -> Call:
    call = unfinished(store, status, shard)
    return call if status == IN_PROGRESS else call._replace(body={**call.body, "Select": "COUNT"})


def _tally_messages(store: DynamoReader) -> Steps[Tally]:
    """Count what is UNSENT or REFUSED."""
    counts: dict[str, int] = {}
    least: set[str] = set()
    for state in ("UNSENT", "REFUSED"):
        times = times_of((state,), store.clock.earliest())
        calls = [messages(store, n, times, None, Limit=_MOST, Select="COUNT") for n in range(SHARDS)]
        found = yield from answers(store, MESSAGES, calls)
        counts[state] = sum(_counted(store, answer) for answer in found)
        least |= {state for answer in found if page(answer)[1] is not None}
    return Tally(counts, frozenset(least))


def _counted(store: DynamoReader, answer: ServiceAnswer) -> int:
    count = answer.body.get("Count") if isinstance(answer.body, dict) else None
    if not isinstance(count, int):
        raise StoreError(f"ledger {store.url}: the answer of an index has no count", transient=True)
    return count


def _total(store: DynamoReader) -> Steps[int | None]:
    """Return DynamoDB's own count, some six hours old. None: the table has other items, or that may not be asked."""
    if any(part.prefix for part in store.layout.parts):
        return None
    answer = yield from store.ask(Call(DYNAMODB, "DescribeTable", {"TableName": store.requests.table}), gone=400)
    if answer.status != 200:
        return None
    described = cast("Mapping[str, Mapping[str, object]]", answer.body)["Table"]
    return int(str(described.get("ItemCount", 0)))
