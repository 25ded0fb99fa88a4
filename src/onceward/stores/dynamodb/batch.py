"""Many conditional writes in few requests: ``BatchExecuteStatement`` takes 25 and answers each separately.

It says which writes were refused, but not which records caused that: one ``BatchGetItem`` reads those. A write with a
transient error is sent again alone. Without the right to use PartiQL, single writes are sent in parallel.
"""

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

from onceward.core.drivers import Steps
from onceward.core.register import Answered
from onceward.core.retries import jittered
from onceward.errors import StoreError
from onceward.stores.dynamodb import faults
from onceward.stores.dynamodb.items import Item
from onceward.stores.dynamodb.replies import members, won
from onceward.stores.dynamodb.writer import DynamoWriter, Wanted
from onceward.wire.calls import Call, ServiceAnswer
from onceward.wire.codes import code_of, short

STATEMENTS = 25  # of one BatchExecuteStatement: DynamoDB's own limit
_AGAIN = (0.05, 0.1)  # seconds before a failed member is written again; then the callers' steps retry
_LOST = frozenset({faults.REFUSED, "DuplicateItem"})


class StoreWarning(UserWarning):
    """A store works, but not as well as it could.

    Cause: The role may not run PartiQL statements, so DynamoDB takes the writes of a batch one by one.

    Fix: Allow ``dynamodb:PartiQLInsert`` and ``dynamodb:PartiQLUpdate``, as the policies of ``onceward init --print`` do.
    """


def write_many(store: DynamoWriter, wanted: Sequence[Wanted]) -> Steps[list[Answered]]:
    """Make each write independently. Return the replies in the same order, with an error for each that failed."""
    replies: dict[int, Answered] = {}
    todo = dict(enumerate(wanted))
    while todo:
        # A request can contain a key once, so a key's second write waits for the first one's answer.
        first: dict[str, int] = {}
        for number, one in todo.items():
            first.setdefault(one.write.key, number)
        replies |= yield from _write_once(store, {number: todo.pop(number) for number in first.values()})
    return [replies[number] for number in range(len(wanted))]


def _write_once(store: DynamoWriter, wanted: Mapping[int, Wanted]) -> Steps[dict[int, Answered]]:
    """Make writes of different keys."""
    these = list(wanted.values())
    if len(these) == 1 or not store.may_batch or any(store.layout.is_foreign(one.seen) for one in these):
        return (yield from _singly(store, wanted))
    records, now, calls, answers = yield from store.sent(these, partial(_statements, store, these))
    codes: list[str] = []
    for call, answer in zip(calls, answers, strict=True):
        codes += _codes(call, answer)
    if faults.DENIED in codes:
        store.may_batch = False
        warnings.warn(
            f"ledger {store.url}: these credentials may not write in batches, so single writes are sent instead. Allow "
            "dynamodb:PartiQLInsert and dynamodb:PartiQLUpdate on the table",
            StoreWarning,
            stacklevel=2,
        )
    replies: dict[int, Answered] = {}
    for place, (number, code) in enumerate(zip(wanted, codes, strict=True)):
        answer = answers[place // STATEMENTS]
        if isinstance(answer, StoreError):
            replies[number] = answer  # alone, each would wait as long; the callers' steps retry
        elif not code:
            replies[number] = won(records[place], answer, now)
    lost = {number: one.write.key for (number, one), code in zip(wanted.items(), codes, strict=True) if code in _LOST}
    found = yield from store.look_many(list(lost.values()))
    replies |= {number: found[key] for number, key in lost.items() if key in found}
    if again := {number: one for number, one in wanted.items() if number not in replies}:
        replies |= yield from _singly(store, again)
    return replies


def _statements(store: DynamoWriter, wanted: Sequence[Wanted], items: list[Item]) -> tuple[Call, ...]:
    statements = [
        store.requests.inserting(item) if w.seen is None else store.requests.swapping(item, w.seen)
        for w, item in zip(wanted, items, strict=True)
    ]
    starts = range(0, len(statements), STATEMENTS)
    return tuple(store.requests.statements(statements[start : start + STATEMENTS]) for start in starts)


def _codes(call: Call, answer: ServiceAnswer | StoreError) -> list[str]:
    """Return for each statement "" if it was made, else the short code of its error."""
    count = len(cast("list[object]", call.body["Statements"]))
    if isinstance(answer, StoreError):
        return ["no answer"] * count
    if answer.status != 200:
        return [code_of(answer)] * count
    try:
        responses = members(answer, "Responses", count)
    except StoreError:
        return ["no sense"] * count
    return [_code(response["Error"]) if "Error" in response else "" for response in responses]


def _code(error: object) -> str:
    code = error.get("Code") if isinstance(error, Mapping) else None
    return short(str(code or "")) or "no code"


def _singly(store: DynamoWriter, wanted: Mapping[int, Wanted]) -> Steps[dict[int, Answered]]:
    """Make each write with its own request, in parallel. Retry transient refusals twice."""
    replies: dict[int, Answered] = {}
    todo = wanted
    for pause in (*_AGAIN, None):
        these = list(todo.values())
        records, now, calls, answers = yield from store.sent(these, partial(_puts, store, these))
        for (number, one), record, call, answer in zip(todo.items(), records, calls, answers, strict=True):
            try:
                replies[number] = yield from store.reply(call, answer, record, now, inserted=one.seen is None)
            except StoreError as error:
                replies[number] = error
        # A write without an answer has waited long; only the callers' steps know whether there is time to retry.
        todo = {
            number: one
            for (number, one), answer in zip(todo.items(), answers, strict=True)
            if isinstance(answer, ServiceAnswer) and getattr(replies[number], "transient", False)
        }
        if not todo or pause is None:
            break
        yield jittered(pause)
    return replies


def _puts(store: DynamoWriter, wanted: Sequence[Wanted], items: list[Item]) -> tuple[Call, ...]:
    return tuple(store.requests.write(item, w.seen) for w, item in zip(wanted, items, strict=True))
