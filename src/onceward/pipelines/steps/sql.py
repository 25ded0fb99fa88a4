"""The steps ``sql`` and ``put``, whose effect can commit with its record."""

from base64 import b64encode
from decimal import Decimal
from typing import Any, Final

import msgspec

from onceward.errors import StepMade
from onceward.pipelines.call import EffectAction, PipelineCall, PipelineMessage
from onceward.pipelines.databases import Database, Statement, opened
from onceward.pipelines.kit import EffectSettings, Kit
from onceward.pipelines.settings import MESSAGE, Expression, Text, given

_KEY: Final = "onceward_key"
_FENCE: Final = "onceward_fence"


class SqlStep(EffectSettings):
    """Run one statement of SQL.

    In the ledger's own database, the statement commits together with its record, so it takes effect exactly once. In
    another database, it is committed before it is recorded. After a crash in between, the statement runs again with the
    same `:onceward_key`. The result has `rows`, a list of objects, and `count`.

    Attributes:
        statement: The statement. A parameter is a name with a colon, as in :amount. :onceward_key is the step's derived key,
            and :onceward_fence the claim's fence.
        parameters: The values by name. A list or an object becomes JSON text.
        database: Another database: sqlite:///file.db, postgresql://user@host/db or mysql://user@host/db. By default the
            ledger's.
    """

    statement: Text
    parameters: dict[str, Expression] = {}
    database: str | None = None

    @property
    def title(self) -> str:
        return f"sql {' '.join(self.statement.split())}"[:100]

    def build(self, kit: "Kit") -> EffectAction:
        database = self._opened(kit)
        statement = None if database is None else self._checked(kit, database)
        is_own = self.database is None or (database is not None and database.url == kit.built.ledger)
        kit.records = not is_own
        if kit.within and is_own:
            kit.mistake(
                "", f"a statement in the ledger's database cannot be within {kit.within!r}, which is recorded alone"
            )

        async def make(message: PipelineMessage, call: "PipelineCall") -> Any:
            assert database is not None
            assert statement is not None
            values = {name: find(message) for name, find in self.parameters.items()}
            values |= {_KEY: call.key(), _FENCE: call.claim.fence}
            if is_own:
                return await call.thread(_transact, database, statement, values, call)
            return await call.thread(_run, database, statement, values)

        return make

    def _opened(self, kit: "Kit") -> Database | None:
        url = self.database or kit.built.ledger
        if url is None:
            kit.mistake("", "database: is missing, because this ledger was not opened by a URL")
            return None
        return opened(kit, "database" if self.database else "", url)

    def _checked(self, kit: "Kit", database: Database) -> Statement | None:
        with kit.noting("statement"):
            statement = Statement(self.statement, database.dialect)
            for name in statement.names:
                if name not in self.parameters and name not in {_KEY, _FENCE}:
                    kit.mistake("statement", f"no value fills :{name}. Give it under parameters:")
            for name in self.parameters:
                if name in {_KEY, _FENCE}:
                    kit.mistake(("parameters", name), f"{name}: onceward itself fills it; leave it out")
            return statement
        return None


def _transact(database: Database, statement: Statement, values: dict[str, object], call: "PipelineCall") -> Any:
    """Run a statement in one transaction with the record of its step."""
    with database.connection() as connection, database.one_by_one_at_first(connection):
        try:
            with call.claim.step_transaction(call.step, connection) as transaction:
                transaction.result = msgspec.to_builtins(database.execute(connection, statement, values))
        except StepMade as made:
            return made.result
    return transaction.result


def _run(database: Database, statement: Statement, values: dict[str, object]) -> Any:
    with database.connection() as connection:
        return database.execute(connection, statement, values)


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
