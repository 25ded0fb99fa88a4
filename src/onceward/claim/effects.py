"""Effects that are writes to DynamoDB, and commit together with the record."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, Protocol, cast

from onceward.core.drivers import Steps
from onceward.core.record import Record, Reply, Write
from onceward.core.steps import Commit

TransactItem = Mapping[
    str, Mapping[str, object]
]  # one of boto3's TransactItems: {"Put": {"TableName": ..., "Item": ...}}

KINDS: Final = ("Put", "Update", "Delete", "ConditionCheck")
MOST: Final = 99  # TransactWriteItems takes 100, and one of them is the record


class Transacting(Protocol):
    """A store that can commit other writes together with a record's."""

    def transact(self, effects: Sequence[TransactItem], write: Write, seen: Record | None) -> Steps[Reply]:
        """As ``insert`` or ``swap``, and with it all of ``effects``, or nothing."""


def committing(store: object, effects: Sequence[TransactItem]) -> Commit:
    """Return the conditional write that takes ``effects`` along.

    Raises:
        TypeError: the store cannot do that, or a write is not a dict of one of Put, Update, Delete and ConditionCheck.
        ValueError: there are too many, or one names no table.
    """
    if not hasattr(store, "transact"):
        raise TypeError(
            "transact needs a ledger in DynamoDB: Once('dynamodb://TABLE'). With a ledger in SQLite, use "
            "claim.transaction(connection)"
        )
    checked = [_checked(number, one) for number, one in enumerate(_few(effects))]
    return partial(cast("Transacting", store).transact, checked)


def _few(effects: Sequence[TransactItem]) -> Sequence[TransactItem]:
    if isinstance(effects, Mapping | str) or not isinstance(effects, Sequence):
        raise TypeError(
            f"writes={effects!r}: give a list of writes, as in [{{'Put': {{'TableName': ..., 'Item': ...}}}}]"
        )
    if len(effects) > MOST:
        raise ValueError(f"{len(effects)} writes: DynamoDB commits at most {MOST} of them together with the record")
    return effects


def _checked(number: int, effect: object) -> TransactItem:
    if not isinstance(effect, Mapping) or len(effect) != 1 or next(iter(effect)) not in KINDS:
        raise TypeError(f"writes[{number}]: give a dict with exactly one of {', '.join(KINDS)}, as boto3 takes it")
    ((kind, body),) = effect.items()
    if not isinstance(body, Mapping):
        raise TypeError(f"writes[{number}]: {kind} takes a dict, as boto3's transact_write_items does")
    if not body.get("TableName"):
        raise ValueError(f"writes[{number}]: {kind} has no TableName")
    if not isinstance(body.get("Item", body.get("Key")), Mapping):
        raise TypeError(
            f"writes[{number}]: {kind} takes {'an Item' if kind == 'Put' else 'a Key'}, a dict of typed values"
        )
    if "ConditionExpression" in body and "ReturnValuesOnConditionCheckFailure" not in body:
        body = {**body, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    return {kind: body}
