"""A record and the effect that goes with it, committed by one ``TransactWriteItems``: all of it, or nothing."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from onceward.core.drive import Steps
from onceward.core.record import Record, Reply, Write
from onceward.errors import EffectRefused, StoreError
from onceward.stores.dynamodb import faults
from onceward.stores.dynamodb.calls import Answer, Call
from onceward.stores.dynamodb.items import Item
from onceward.stores.dynamodb.replies import won

if TYPE_CHECKING:
    from onceward.stores.dynamodb.store import DynamoStore

Effects = Mapping[str, Mapping[str, object]]


def transact(store: "DynamoStore", effects: Sequence[Effects], write: Write, seen: Record | None) -> Steps[Reply]:
    """Write the record if the one seen still stands, and with it all of ``effects``.

    Sent without a ClientRequestToken: whether an earlier try was made is told by the record, and not for ten minutes only.
    """
    (record,), (item,), now = yield from store.stamped([write])
    call = store.requests.transact(item, seen, effects)
    answer = yield from store.heard(call, cast("Answer", (yield call)))
    if answer.status == 200:
        return won(record, answer, now)
    if faults.code_of(answer) != faults.CANCELED:
        raise store.failure(call, answer)
    ours, *theirs = faults.reasons_of(answer)
    if ours.get("Code") == faults.REFUSED:
        held = cast("Item | None", ours.get("Item"))
        return Reply(False, (yield from store.read(held)) if held else None, store.clock.earliest())
    raise _refused(store, call, write.key, effects, [ours, *theirs])


def _refused(
    store: "DynamoStore", call: Call, key: str, effects: Sequence[Effects], reasons: Sequence[Mapping[str, object]]
) -> EffectRefused | StoreError:
    """Return why the transaction was cancelled although our own condition held: what passes by itself comes last."""
    codes = [faults.short(str(reason.get("Code") or "None")) for reason in reasons]
    for index, effect in enumerate(effects):
        if codes[index + 1] == faults.REFUSED:
            ((kind, body),) = effect.items()
            return EffectRefused(key, index, f"{kind} on {body['TableName']}", reasons[index + 1].get("Item"))
    places = ["the record", *(f"writes[{index}]" for index in range(len(effects)))]
    lasting = [n for n, code in enumerate(codes) if code != "None" and code not in faults.PASSING]
    number = next(iter(lasting or [n for n, code in enumerate(codes) if code != "None"]), 0)
    return StoreError(
        f"ledger {store.url}: {faults.name_of(call)} was cancelled because of {places[number]}: {codes[number]} "
        f"({reasons[number].get('Message') or 'no message'})",
        transient=not lasting,
    )
