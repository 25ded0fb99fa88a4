"""A record and the effect that goes with it, committed by one ``TransactWriteItems``: all of it, or nothing."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from onceward.core.drivers import Steps
from onceward.core.record import Record, Reply, Write
from onceward.errors import EffectRefused, StoreError
from onceward.stores.dynamodb import faults
from onceward.stores.dynamodb.items import Item
from onceward.stores.dynamodb.replies import won
from onceward.wire.calls import Call
from onceward.wire.codes import PASSING, code_of, short

if TYPE_CHECKING:
    from onceward.stores.dynamodb.store import DynamoStore

Effects = Mapping[str, Mapping[str, object]]


def transact(store: "DynamoStore", effects: Sequence[Effects], write: Write, seen: Record | None) -> Steps[Reply]:
    """Write the record if the one seen still stands, and with it all of ``effects``.

    Sent without a ClientRequestToken: whether an earlier try was made is told by the record, and not for ten minutes only.
    """
    _check_apart(store, write.key, effects)
    sent = yield from store.sent([write], lambda items: (store.requests.transact(items[0], seen, effects),))
    (record,), (call,), (answer,) = sent.records, sent.calls, sent.answers
    if isinstance(answer, StoreError):
        raise answer
    if answer.status == 200:
        return won(record, answer, sent.now)
    reasons = faults.reasons_of(answer)
    if code_of(answer) != faults.CANCELED or len(reasons) != len(effects) + 1:
        raise store.failure(call, answer)
    if reasons[0].get("Code") == faults.REFUSED:
        return (yield from store.refused(record, cast("Item | None", reasons[0].get("Item")), inserted=seen is None))
    raise _refused(store, call, write.key, effects, reasons)


def _check_apart(store: "DynamoStore", key: str, effects: Sequence[Effects]) -> None:
    """Refuse an effect on the record itself: a transaction takes one write for each item."""
    own = store.layout.key(key)
    for index, effect in enumerate(effects):
        ((_, body),) = effect.items()
        place = cast("Mapping[str, object]", body.get("Key") or body.get("Item") or {})
        if body["TableName"] == store.requests.table and own.items() <= place.items():
            raise ValueError(
                f"writes[{index}] is to the very item that is this key's record; give the ledger a table of its own"
            )


def _refused(
    store: "DynamoStore", call: Call, key: str, effects: Sequence[Effects], reasons: Sequence[Mapping[str, object]]
) -> EffectRefused | StoreError:
    """Return why the transaction was cancelled although our own condition held: what passes by itself comes last."""
    codes = [short(str(reason.get("Code") or "None")) for reason in reasons]
    for index, effect in enumerate(effects):
        # With anything against our own write nothing is known: an earlier try may be about to commit.
        if codes[0] == "None" and codes[index + 1] == faults.REFUSED:
            ((kind, body),) = effect.items()
            return EffectRefused(key, index, f"{kind} on {body['TableName']}", reasons[index + 1].get("Item"))
    places = ["the record", *(f"writes[{index}]" for index in range(len(effects)))]
    lasting = [n for n, code in enumerate(codes) if code not in {"None", faults.REFUSED} | PASSING]
    number = next(iter(lasting or [n for n, code in enumerate(codes) if code != "None"]), 0)
    return StoreError(
        f"ledger {store.url}: {faults.name_of(call)} was cancelled because of {places[number]}: {codes[number]} "
        f"({reasons[number].get('Message') or 'no message'})",
        transient=not lasting,
    )
