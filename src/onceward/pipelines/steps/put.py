"""The step ``put``."""

from base64 import b64encode
from decimal import Decimal
from typing import Any

from onceward.pipelines.call import EffectAction, PipelineCall, PipelineMessage
from onceward.pipelines.kit import EffectSettings, Kit
from onceward.pipelines.paths import MESSAGE
from onceward.pipelines.settings import Expression, Text, given


class PutStep(EffectSettings):
    """Put an item into a table of DynamoDB. The ledger must be in DynamoDB, too.

    The items of a message are committed with the completion of its key. This step has no result.

    Attributes:
        table: The table's name or ARN.
        item: The item: an object that has the table's key.
        condition: A ConditionExpression, as in attribute_not_exists(id). If the condition fails, the message fails.
        names: ExpressionAttributeNames, as in '#s': status.
        values: ExpressionAttributeValues, as in ':old': message.old.
    """

    table: Text
    item: Expression = given(MESSAGE)
    condition: str | None = None
    names: dict[str, str] = {}
    values: dict[str, Expression] = {}

    @property
    def title(self) -> str:
        return f"put {self.table}"

    def build(self, kit: "Kit") -> EffectAction:
        kit.records = False
        if not (kit.built.ledger or kit.once.store.url).startswith("dynamodb:"):
            kit.mistake("", "put needs a ledger in DynamoDB, which commits the item with the record. Use call")
        if kit.within:
            kit.mistake(
                "", f"what is committed with the record cannot be within {kit.within!r}, which is recorded before"
            )

        async def make(message: PipelineMessage, call: "PipelineCall") -> Any:
            body: dict[str, object] = {"TableName": self.table, "Item": _item(self.item(message))}
            if self.condition is not None:
                body["ConditionExpression"] = self.condition
            if self.names:
                body["ExpressionAttributeNames"] = self.names
            if self.values:
                body["ExpressionAttributeValues"] = {name: _typed(one(message)) for name, one in self.values.items()}
            call.writes.append({"Put": body})

        return make


def _item(value: object) -> dict[str, object]:
    """Return an object as an item; raises ValueError if it is none."""
    if not isinstance(value, dict):
        raise ValueError(f"an item is an object, and this is a {type(value).__name__}")
    return {name: _typed(one) for name, one in value.items()}


def _typed(value: object) -> dict[str, object]:
    """Return what JSON can hold, or bytes, as an attribute value (DynamoDB API Reference, AttributeValue)."""
    match value:
        case None:
            return {"NULL": True}
        case bool():
            return {"BOOL": value}
        case int() | float() | Decimal():
            return {"N": str(value)}
        case bytes():
            return {"B": b64encode(value).decode()}
        case list():
            return {"L": [_typed(one) for one in value]}
        case dict():
            return {"M": _item(value)}
        case str():
            return {"S": value}
    raise ValueError(f"a {type(value).__name__} cannot be an attribute")
