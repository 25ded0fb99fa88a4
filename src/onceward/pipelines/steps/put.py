"""The step ``put``."""

from collections.abc import Mapping
from typing import Any

from onceward.aws.targets.sending import AwsClient
from onceward.errors import StoreError
from onceward.pipelines.call import EffectAction, PipelineCall, PipelineMessage, StepNotMade
from onceward.pipelines.keyvalue.dynamodb import DYNAMODB, is_same, item, typed
from onceward.pipelines.kit import EffectSettings, Kit
from onceward.pipelines.settings import Expression, Text, as_written
from onceward.wire.calls import PASSING, code_of, message_of
from onceward.wire.endpoints import from_environment


class PutStep(EffectSettings):
    """Put an item into a table of DynamoDB.

    If the ledger is in DynamoDB too, the items of a message are committed with the completion of its key. Then this
    step has no result. With another ledger, the item is put at once, and the step is recorded after that. If the
    condition fails there because the table has an equal item, the step counts as done.

    Attributes:
        table: The table's name or ARN.
        item: The item: an object that has the table's key.
        condition: A ConditionExpression, as in attribute_not_exists(id). If the condition fails, the message fails.
        names: ExpressionAttributeNames, as in '#s': status.
        values: ExpressionAttributeValues, as in ':old': message.old.
        region: The region, if the ledger is elsewhere.
    """

    table: Text
    item: Expression = as_written("message")
    condition: str | None = None
    names: dict[str, str] = {}
    values: dict[str, Expression] = {}
    region: str | None = None

    @property
    def title(self) -> str:
        return f"put {self.table}"

    def build(self, kit: "Kit") -> EffectAction:
        together = "transact" in kit.once.store.capabilities
        kit.records = not together
        if together and self.region is not None:
            kit.mistake(
                "region", "the item is committed with the record, so it is in the region of the ledger; leave it out"
            )
        if together and kit.within:
            kit.mistake(
                "", f"what is committed with the record cannot be within {kit.within!r}, which is recorded before"
            )
        if self.condition is None and (self.names or self.values):
            kit.mistake("names" if self.names else "values", "there is no condition: to use them")
        client = None if together else AwsClient(DYNAMODB, self.region, from_environment("dynamodb"))

        async def make(message: PipelineMessage, call: "PipelineCall") -> Any:
            body: dict[str, object] = {"TableName": self.table, "Item": item(self.item(message))}
            if self.condition is not None:
                body["ConditionExpression"] = self.condition
            if self.names:
                body["ExpressionAttributeNames"] = self.names
            if self.values:
                body["ExpressionAttributeValues"] = {name: typed(one(message)) for name, one in self.values.items()}
            if client is None:
                call.writes.append({"Put": body})
            else:
                await call.thread(_put, client, body)

        return make


def _put(client: AwsClient, body: dict[str, object]) -> None:
    try:
        answer = client.ask("PutItem", {**body, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"})
    except StoreError as error:
        raise ConnectionError(str(error)) from error
    if answer.status == 200:
        return
    if isinstance(answer.body, Mapping) and is_same(answer.body.get("Item"), body["Item"]):
        return  # it is there: an earlier attempt has put it, or its answer was lost
    code = code_of(answer)
    text = f"DynamoDB did not put the item into {body['TableName']}: {code} ({message_of(answer)})"
    if answer.status >= 500 or code in PASSING:
        raise ConnectionError(text)
    raise StepNotMade(text)
