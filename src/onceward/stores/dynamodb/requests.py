"""The requests of the verbs: what is asked of DynamoDB, and under which condition."""

from collections.abc import Mapping, Sequence
from typing import Final, cast

from onceward.core.record import Record
from onceward.stores.contract import Damaged
from onceward.stores.dynamodb.items import Item, Layout, Value, number
from onceward.wire.calls import Call, Service

DYNAMODB: Final = Service("DynamoDB", "dynamodb", "DynamoDB_20120810")
ALL_OLD: Final = "ALL_OLD"
Body = dict[str, object]


class Requests:
    """Makes the calls for one table.

    Args:
        table: its name.
        layout: how records stand in it.
        metered: whether to ask for the consumed capacity.
    """

    def __init__(self, table: str, layout: Layout, *, metered: bool = False) -> None:
        self.table = table
        self.layout = layout
        self._common: Body = (
            {"TableName": table, "ReturnConsumedCapacity": "TOTAL"} if metered else {"TableName": table}
        )
        self._metered: Body = {"ReturnConsumedCapacity": "TOTAL"} if metered else {}
        self._refusing = {**self._common, "ReturnValuesOnConditionCheckFailure": ALL_OLD}
        self._absent: Body = {
            "ConditionExpression": "attribute_not_exists(#k)",
            "ExpressionAttributeNames": {"#k": layout.partition.name},
        }
        owner, fence, beat, *more = layout.version
        terms = ["#o = :o", "#f = :f", "#b = :b", *(f"#v{n} = :v{n}" for n in range(len(more)))]
        self._version: Body = {
            "ConditionExpression": " AND ".join(terms),
            "ExpressionAttributeNames": {
                "#o": owner,
                "#f": fence,
                "#b": beat,
                **{f"#v{n}": name for n, name in enumerate(more)},
            },
        }
        self._inserting: Body = {**self._refusing, **self._absent}
        self._swapping: Body = {**self._refusing, **self._version}
        self._fields = layout.attributes
        changes = ", ".join(f"{_name(name)} = ?" for name in self._fields)
        where = " AND ".join(f"{_name(name)} = ?" for name in [*(part.name for part in layout.parts), *layout.version])
        self._update = f"UPDATE {_name(table)} SET {changes} WHERE {where}"

    def condition(self, seen: Record | None) -> Body:
        """Return the condition that the key is absent, or that the record held has the version of the one seen."""
        if seen is None:
            return self._absent
        if self.layout.is_foreign(seen):
            return _unchanged(self.layout.as_seen(seen))
        return {**self._version, "ExpressionAttributeValues": self.layout.version_of(seen)}

    def put(self, item: Item, seen: Record | None) -> Call:
        """Write an item under the condition."""
        if seen is None:
            return Call(DYNAMODB, "PutItem", {**self._inserting, "Item": item})
        if self.layout.is_foreign(seen):
            return Call(DYNAMODB, "PutItem", {**self._refusing, **self.condition(seen), "Item": item})
        values = self.layout.version_of(seen)
        return Call(DYNAMODB, "PutItem", {**self._swapping, "ExpressionAttributeValues": values, "Item": item})

    def transact(self, item: Item, seen: Record | None, effects: Sequence[Mapping[str, object]]) -> Call:
        """Write an item under the condition, and with it all effects."""
        put: Body = {"TableName": self.table, "ReturnValuesOnConditionCheckFailure": ALL_OLD, **self.condition(seen)}
        return Call(
            DYNAMODB,
            "TransactWriteItems",
            {**self._metered, "TransactItems": [{"Put": {**put, "Item": item}}, *effects]},
        )

    def delete(self, seen: Record | Damaged) -> Call:
        """Delete the record seen."""
        if isinstance(seen, Damaged):
            item = cast("Item", seen.seen)
            key = {part.name: item[part.name] for part in self.layout.parts}
            was = {name: item.get(name) for name in self.layout.attributes}
            return Call(DYNAMODB, "DeleteItem", {**self._refusing, **_unchanged(was), "Key": key})
        return Call(
            DYNAMODB, "DeleteItem", {**self._refusing, **self.condition(seen), "Key": self.layout.key(seen.key)}
        )

    def get(self, key: str, *, consistent: bool) -> Call:
        """Read one item."""
        return Call(DYNAMODB, "GetItem", {**self._common, "Key": self.layout.key(key), "ConsistentRead": consistent})

    def get_many(self, keys: Sequence[Item]) -> Call:
        """Read up to 100 items."""
        return Call(
            DYNAMODB,
            "BatchGetItem",
            {**self._metered, "RequestItems": {self.table: {"Keys": keys, "ConsistentRead": True}}},
        )

    def scan(self, start: Item | None, limit: int | None, condition: Body) -> Call:
        """Read a page of items."""
        body = {**self._common, **condition}
        if start is not None:
            body["ExclusiveStartKey"] = start
        if limit is not None:
            body["Limit"] = limit
        return Call(DYNAMODB, "Scan", body)

    def having(self, prefix: str) -> Body:
        """Return the filter of records whose key starts with ``prefix``."""
        names = {f"#m{n}": name for n, name in enumerate(self.layout.marks)}
        values: dict[str, Value] = {}
        terms = [f"attribute_exists({mark})" for mark in names]
        if self.layout.statuses:
            names["#s"] = self.layout.status
            values = {f":s{n}": {"S": text} for n, text in enumerate(self.layout.statuses)}
            terms.append(f"#s IN ({', '.join(values)})")
        for number_, part in enumerate(self.layout.parts):
            texts = [part.prefix + start for start in self.layout.starts(prefix)] if part.holds_key else [part.prefix]
            if "" in texts:
                continue
            name = f"#k{number_}"
            names[name] = part.name
            wanted: dict[str, Value] = {f":k{number_}x{n}": {"S": text} for n, text in enumerate(texts)}
            values |= wanted
            ways = [f"begins_with({name}, {value})" if part.holds_key else f"{name} = {value}" for value in wanted]
            terms.append(f"({' OR '.join(ways)})")
        body: Body = {"FilterExpression": " AND ".join(terms), "ExpressionAttributeNames": names}
        return {**body, "ExpressionAttributeValues": values} if values else body

    def expired(self, now: float) -> Body:
        """Return the filter of records past their ``expires_at``."""
        body = self.having("")
        names = {**_mapping(body["ExpressionAttributeNames"]), "#e": self.layout.expiry}
        values = {**_mapping(body.get("ExpressionAttributeValues", {})), ":now": {"N": number(now)}}
        return {
            "FilterExpression": f"{body['FilterExpression']} AND #e <= :now",
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": values,
        }

    # --- PartiQL --------------------------------------------------------------------------------------------------

    def statements(self, statements: Sequence[Body]) -> Call:
        """Run up to 25 conditional writes, each on its own merits."""
        return Call(DYNAMODB, "BatchExecuteStatement", {**self._metered, "Statements": statements})

    def inserting(self, item: Item) -> Body:
        """Return the statement that writes an item if its key is absent."""
        fields = ", ".join(f"{_text(name)}: ?" for name in item)
        return {"Statement": f"INSERT INTO {_name(self.table)} VALUE {{{fields}}}", "Parameters": list(item.values())}

    def swapping(self, item: Item, seen: Record) -> Body:
        """Return the statement that changes the record seen into ``item``; what it does not have becomes NULL."""
        null: Value = {"NULL": True}
        changes = [item.get(name, null) for name in self._fields]
        where = [*self.layout.key(seen.key).values(), *self.layout.version_of(seen).values()]
        return {"Statement": self._update, "Parameters": [*changes, *where]}


def _unchanged(seen: Mapping[str, Value | None]) -> Body:
    """Return the condition that attributes still are what they were, None for one that was absent."""
    terms = [f"attribute_not_exists(#a{n})" if was is None else f"#a{n} = :a{n}" for n, was in enumerate(seen.values())]
    body: Body = {
        "ConditionExpression": " AND ".join(terms),
        "ExpressionAttributeNames": {f"#a{n}": name for n, name in enumerate(seen)},
    }
    values = {f":a{n}": was for n, was in enumerate(seen.values()) if was is not None}
    return {**body, "ExpressionAttributeValues": values} if values else body


def _mapping(value: object) -> Mapping[str, object]:
    assert isinstance(value, Mapping)
    return value


def _name(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _text(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"
