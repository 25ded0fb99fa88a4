"""What a DynamoDB ledger holds, in bounded time (:data:`onceward.stores.capabilities.SURVEY`).

Only a ledger with ``index=open`` can tell.
"""

from collections.abc import Mapping
from typing import cast

from onceward.core.drivers import Steps
from onceward.stores.contract import NoIndex
from onceward.stores.dynamodb import messages
from onceward.stores.dynamodb.requests import DYNAMODB
from onceward.stores.dynamodb.store import DynamoStore
from onceward.stores.dynamodb.unfinished import STATUSES, tally
from onceward.stores.survey import NOTHING, Survey
from onceward.wire.calls import Call


def survey(store: DynamoStore) -> Steps[Survey]:
    """Count what is not completed by its index, at most about :data:`onceward.stores.survey.READ` records of a status."""
    if not store.layout.lists_open:
        return NOTHING
    try:
        found = yield from tally(store)
    except NoIndex:
        return NOTHING
    sending, more = yield from messages.tally(store)
    total = yield from _total(store)
    if total is not None:
        total = max(total, sum(found.counts[status] for status in STATUSES))
    return Survey(
        STATUSES, False, found.counts | sending, total, False, None, store.clock.earliest(), found.least | more
    )


def _total(store: DynamoStore) -> Steps[int | None]:
    """Return DynamoDB's own count, some six hours old. None: the table has other items, or that may not be asked."""
    if any(part.prefix for part in store.layout.parts):
        return None
    answer = yield from store.ask(Call(DYNAMODB, "DescribeTable", {"TableName": store.requests.table}), gone=400)
    if answer.status != 200:
        return None
    described = cast("Mapping[str, Mapping[str, object]]", answer.body)["Table"]
    return int(str(described.get("ItemCount", 0)))
