"""The requests of the verbs: what is asked of DynamoDB, and under which condition."""

from collections.abc import Mapping, Sequence
from typing import Final

from onceward.core.record import Record
from onceward.stores.dynamodb.calls import Call
from onceward.stores.dynamodb.items import Item, Layout, Value, number

ALL_OLD: Final = "ALL_OLD"
Body = dict[str, object]


class Requests:
    """Makes the calls for one table.

    Args:
        table: its name or ARN.
        layout: how records stand in it.
        metered: whether to ask for the consumed capacity.
    """

    def __init__(self, table: str, layout: Layout, *, metered: bool) -> None:
        self.table = table
        self.layout = layout
        self._common: Body = (
            {"TableName": table, "ReturnConsumedCapacity": "TOTAL"} if metered else {"TableName": table}
        )
        self._metered: Body = {"ReturnConsumedCapacity": "TOTAL"} if metered else {}
        self._refusing = {**self._common, "ReturnValuesOnConditionCheckFailure": ALL_OLD}
        names = layout.names
        self._absent: Body = {
            "ConditionExpression": "attribute_not_exists(#k)",
            "ExpressionAttributeNames": {"#k": layout.partition.name},
        }
        self._version: Body = {
            "ConditionExpression": "#o = :o AND #f = :f AND #b = :b",
            "ExpressionAttributeNames": {"#o": names["owner"], "#f": names["fence"], "#b": names["beat"]},
        }
        self._fields = [names[field] for field in Record._fields[1:]]
        changes = ", ".join(f"{_name(name)} = ?" for name in self._fields)
        version = [names["owner"], names["fence"], names["beat"]]
        where = " AND ".join(f"{_name(name)} = ?" for name in [*(part.name for part in layout.parts), *version])
        self._update = f"UPDATE {_name(table)} SET {changes} WHERE {where}"  # noqa: S608 - names are quoted

    def condition(self, seen: Record | None) -> Body:
        """Return the condition that the key is absent, or that the record held has the version of the one seen."""
        if seen is None:
            return self._absent
        return {**self._version, "ExpressionAttributeValues": _version_values(seen)}

    def put(self, item: Item, seen: Record | None) -> Call:
        """Write an item under the condition."""
        return Call("PutItem", {**self._refusing, **self.condition(seen), "Item": item})

    def delete(self, seen: Record) -> Call:
        """Delete the record seen."""
        return Call("DeleteItem", {**self._refusing, **self.condition(seen), "Key": self.layout.key(seen.key)})

    def get(self, key: str, *, consistent: bool) -> Call:
        """Read one item."""
        return Call("GetItem", {**self._common, "Key": self.layout.key(key), "ConsistentRead": consistent})

    def get_many(self, keys: Sequence[Item]) -> Call:
        """Read up to 100 items."""
        return Call(
            "BatchGetItem", {**self._metered, "RequestItems": {self.table: {"Keys": keys, "ConsistentRead": True}}}
        )

    def scan(self, start: Item | None, limit: int | None, condition: Body) -> Call:
        """Read a page of items."""
        body = {**self._common, **condition}
        if start is not None:
            body["ExclusiveStartKey"] = start
        if limit is not None:
            body["Limit"] = limit
        return Call("Scan", body)

    def having(self, prefix: str) -> Body:
        """Return the filter of records whose key starts with ``prefix``."""
        names: dict[str, str] = {"#s": self.layout.names["status"]}
        values: dict[str, Value] = {}
        terms = ["attribute_exists(#s)"]
        for number_, part in enumerate(self.layout.parts):
            text = part.prefix + prefix if part.holds_key else part.prefix
            if text:
                names[f"#k{number_}"] = part.name
                values[f":k{number_}"] = {"S": text}
                terms.append(
                    f"begins_with(#k{number_}, :k{number_})" if part.holds_key else f"#k{number_} = :k{number_}"
                )
        body: Body = {"FilterExpression": " AND ".join(terms), "ExpressionAttributeNames": names}
        return {**body, "ExpressionAttributeValues": values} if values else body

    def expired(self, now: float) -> Body:
        """Return the filter of records past their ``expires_at``."""
        body = self.having("")
        names = {**_mapping(body["ExpressionAttributeNames"]), "#e": self.layout.names["expires_at"]}
        values = {**_mapping(body.get("ExpressionAttributeValues", {})), ":now": {"N": number(now)}}
        return {
            "FilterExpression": f"{body['FilterExpression']} AND #e <= :now",
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": values,
        }

    # --- PartiQL --------------------------------------------------------------------------------------------------

    def statements(self, statements: Sequence[Body]) -> Call:
        """Run up to 25 conditional writes, each on its own merits."""
        return Call("BatchExecuteStatement", {**self._metered, "Statements": statements})

    def inserting(self, item: Item) -> Body:
        """Return the statement that writes an item if its key is absent."""
        fields = ", ".join(f"{_text(name)}: ?" for name in item)
        return {"Statement": f"INSERT INTO {_name(self.table)} VALUE {{{fields}}}", "Parameters": list(item.values())}

    def swapping(self, item: Item, seen: Record) -> Body:
        """Return the statement that changes the record seen into ``item``; what it does not have becomes NULL."""
        null: Value = {"NULL": True}
        changes = [item.get(name, null) for name in self._fields]
        where = [*self.layout.key(seen.key).values(), *_version_values(seen).values()]
        return {"Statement": self._update, "Parameters": [*changes, *where]}


def _version_values(seen: Record) -> dict[str, Value]:
    return {":o": {"S": seen.owner}, ":f": {"N": str(seen.fence)}, ":b": {"N": str(seen.beat)}}


def _mapping(value: object) -> Mapping[str, object]:
    assert isinstance(value, Mapping)
    return value


def _name(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _text(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"
