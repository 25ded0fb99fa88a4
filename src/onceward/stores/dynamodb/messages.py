"""Finding and counting the records with unsent messages, also those that are not due, by the index of ``due.py``."""

import json
from typing import Final

from onceward.core.comparisons import meets
from onceward.core.drivers import Steps
from onceward.core.protocol import SOME_DAY
from onceward.core.views import Criteria
from onceward.errors import StoreError
from onceward.stores.contract import Page
from onceward.stores.dynamodb.due import hint_of, query, starts_of
from onceward.stores.dynamodb.items import SHARDS
from onceward.stores.dynamodb.reader import DynamoReader
from onceward.stores.dynamodb.replies import page as page_of
from onceward.wire.calls import Call, ServiceAnswer
from onceward.wire.codes import code_of

_EVER: Final = 1e14  # seconds since the epoch
_MOST: Final = 10_000  # entries of a shard that are counted


def find(store: DynamoReader, criteria: Criteria, prefix: str, after: str | None, limit: int) -> Steps[Page | None]:
    """Read one page, the longest due first. None: the table has no such index yet."""
    yield from store.learn_time()
    now, starts = store.clock.earliest(), starts_of(after)
    times = _times(now)[criteria.states[0]] if len(criteria.states) == 1 else (0.0, _EVER)
    answers = yield from _answers(store, [query(store, n, start, times, limit) for n, start in enumerate(starts)])
    if answers is None:
        return None
    pages = [page_of(answer) for answer in answers]
    hints = sorted(
        (hint_of(store, n, item) for n, page in enumerate(pages) for item in page[0]), key=lambda one: one[:2]
    )
    for hint in hints[:limit]:
        starts[hint.shard] = hint.place
    more = len(hints) > limit or any(last is not None for _, last in pages)
    records, damaged = yield from store.hinted([one.key for one in hints[:limit] if one.key.startswith(prefix)])
    records = [record for record in records if meets(record, criteria.clause, now)]
    return Page(records, json.dumps(starts, separators=(",", ":")) if more else None, now, damaged)


def tally(store: DynamoReader) -> Steps[tuple[dict[str, int], frozenset[str]]]:
    """Count what is UNSENT or REFUSED, and tell of which there are more. Nothing: the table has no such index yet."""
    counts: dict[str, int] = {}
    least: set[str] = set()
    for state, times in _times(store.clock.earliest()).items():
        calls = [query(store, n, None, times, _MOST) for n in range(SHARDS)]
        calls = [call._replace(body={**call.body, "Select": "COUNT"}) for call in calls]
        answers = yield from _answers(store, calls)
        if answers is None:
            return {}, frozenset()
        told = [answer.body if isinstance(answer.body, dict) else {} for answer in answers]
        counts[state] = sum(int(one.get("Count", 0)) for one in told)
        least |= {state for one in told if one.get("LastEvaluatedKey")}
    return counts, frozenset(least)


def _times(now: float) -> dict[str, tuple[float, float]]:
    """Return between which times messages of a state are due."""
    return {"UNSENT": (0.0, now + SOME_DAY), "REFUSED": (now + SOME_DAY, _EVER)}


def _answers(store: DynamoReader, calls: list[Call]) -> Steps[list[ServiceAnswer] | None]:
    answers: list[ServiceAnswer] = []
    for call, answer in zip(calls, (yield from store.ask_many(tuple(calls))), strict=True):
        if isinstance(answer, StoreError):
            raise answer
        if answer.status != 200 and code_of(answer) == "Validation":
            return None
        if answer.status != 200:
            raise store.failure(call, answer)
        answers.append(answer)
    return answers
