"""Commits a record and its effect with one ``TransactWriteItems``: all or nothing."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

from onceward.core.drivers import Steps
from onceward.core.record import Record, Reply, Write
from onceward.core.steps import Commit
from onceward.errors import EffectRefused, StoreError
from onceward.stores.dynamodb.items import Item
from onceward.stores.dynamodb.store import DynamoStore
from onceward.stores.dynamodb.table import CANCELED, REFUSED, name_of, reasons_of, won
from onceward.wire.calls import PASSING, Call, code_of, short

TransactItem = Mapping[str, Mapping[str, object]]  # as boto3 takes it: {"Put": {"TableName": ..., "Item": ...}}

KINDS: Final = ("Put", "Update", "Delete", "ConditionCheck")
MOST: Final = 99  # TransactWriteItems takes 100, and one of them is the record


def committing(store: DynamoStore, effects: Sequence[object]) -> Commit:
    """Return the conditional write that includes ``effects`` (:data:`onceward.stores.capabilities.TRANSACT`).

    Raises:
        TypeError: a write is not a dict of one of Put, Update, Delete and ConditionCheck.
        ValueError: there are too many.
    """
    if isinstance(effects, Mapping | str) or not isinstance(effects, Sequence):
        raise TypeError(
            f"writes={effects!r}: give a list of writes, as in [{{'Put': {{'TableName': ..., 'Item': ...}}}}]"
        )
    if len(effects) > MOST:
        raise ValueError(f"{len(effects)} writes: DynamoDB commits at most {MOST} of them together with the record")
    return partial(transact, store, [_check(number, one) for number, one in enumerate(effects)])


def _check(number: int, effect: object) -> TransactItem:
    kind: Any
    body: Any
    kind, body = next(iter(effect.items()), ("", None)) if isinstance(effect, Mapping) else ("", None)
    place = body.get("Item", body.get("Key")) if isinstance(body, Mapping) and body.get("TableName") else None
    if kind not in KINDS or len(cast("TransactItem", effect)) != 1 or not isinstance(place, Mapping):
        raise TypeError(
            f"writes[{number}]: give a dict with exactly one of {', '.join(KINDS)}, as boto3's transact_write_items takes it, with a "
            "TableName, and the Item or Key as typed values"
        )
    if "ConditionExpression" in body:
        body = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD", **body}
    return {kind: body}


def transact(store: DynamoStore, effects: Sequence[TransactItem], write: Write, seen: Record | None) -> Steps[Reply]:
    """Write the record and all ``effects`` if the record seen is unchanged; else write nothing.

    Needs no ClientRequestToken: the record itself shows whether an earlier try was made, and not only for ten minutes.
    """
    if seen is None and not store.clock.known:
        early = yield from store.look(write.key, consistent=False)
        if early.record is not None:
            return early
    _check_apart(store, write.key, effects)
    (record,), now, (call,), (answer,) = yield from store.send(
        [(write, seen)], lambda items: (store.requests.transact(items[0], seen, effects),)
    )
    if isinstance(answer, StoreError):
        raise answer
    if answer.status == 200:
        return won(record, answer, now)
    reasons = reasons_of(answer)
    if code_of(answer) != CANCELED or len(reasons) != len(effects) + 1:
        raise store.failure(call, answer)
    if reasons[0].get("Code") == REFUSED:
        return (yield from store.refusal(record, cast("Item | None", reasons[0].get("Item")), inserted=seen is None))
    raise _cancellation(store, call, write.key, effects, reasons)


def _check_apart(store: DynamoStore, key: str, effects: Sequence[TransactItem]) -> None:
    """Refuse an effect on the record itself: a transaction takes one write per item."""
    own = store.layout.key(key)
    for index, effect in enumerate(effects):
        ((_, body),) = effect.items()
        place = cast("Mapping[str, object]", body.get("Key") or body.get("Item") or {})
        if body["TableName"] == store.requests.table and own.items() <= place.items():
            raise ValueError(f"writes[{index}] is a write to this key's own record; give the ledger a table of its own")


def _cancellation(
    store: DynamoStore, call: Call, key: str, effects: Sequence[TransactItem], reasons: Sequence[Mapping[str, object]]
) -> EffectRefused | StoreError:
    """Return why the transaction was cancelled although our own condition held. Reasons that pass by themselves come last."""
    codes = [short(str(reason.get("Code") or "None")) for reason in reasons]
    for index, effect in enumerate(effects):
        # If there is a reason against our own write, the outcome is unknown: an earlier try may be about to commit.
        if codes[0] == "None" and codes[index + 1] == REFUSED:
            ((kind, body),) = effect.items()
            return EffectRefused(key, index, f"{kind} on {body['TableName']}", reasons[index + 1].get("Item"))
    places = ["the record", *(f"writes[{index}]" for index in range(len(effects)))]
    lasting = [n for n, code in enumerate(codes) if code not in {"None", REFUSED} | PASSING]
    number = next(iter(lasting or [n for n, code in enumerate(codes) if code != "None"]), 0)
    return StoreError(
        f"ledger {store.url}: {name_of(call)} was cancelled because of {places[number]}: {codes[number]} "
        f"({reasons[number].get('Message') or 'no message'})",
        transient=not lasting,
    )
