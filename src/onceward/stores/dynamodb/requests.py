"""The requests of the verbs: what is asked of DynamoDB, and under which condition."""

from collections.abc import Mapping, Sequence
from itertools import islice
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
        self._fields = layout.attributes
        self._marks = {name: f"#n{n}" for n, name in enumerate(self._fields)}
        self._names = {mark: name for name, mark in self._marks.items()}
        self._values = tuple(f":n{n}" for n in range(len(self._fields)))
        self._keys = tuple(part.name for part in layout.parts)
        self._updates: dict[tuple[str, ...], str] = {}  # by the attributes of an item; there are few
        seen = (":o", ":f", ":b", *(f":v{n}" for n in range(len(layout.version) - 3)))
        self._version: Body = {
            "ConditionExpression": " AND ".join(
                f"{self._marks[name]} = {value}" for name, value in zip(layout.version, seen, strict=True)
            ),
            "ExpressionAttributeNames": {self._marks[name]: name for name in layout.version},
        }
        self._inserting: Body = {**self._refusing, **self._absent}
        self._swapping: Body = {**self._refusing, **self._version, "ExpressionAttributeNames": self._names}
        changes = ", ".join(f"{_name(name)} = ?" for name in self._fields)
        where = " AND ".join(f"{_name(name)} = ?" for name in [*self._keys, *layout.version])
        self._update = f"UPDATE {_name(table)} SET {changes} WHERE {where}"

    def condition(self, seen: Record) -> Body:
        """Return the condition that the record held has the version of the one seen."""
        if self.layout.is_foreign(seen):
            return self._unchanged(self.layout.as_seen(seen))
        return {**self._version, "ExpressionAttributeValues": self.layout.version_of(seen)}

    def write(self, item: Item, seen: Record | None) -> Call:
        """Write an item if its key is absent, or change the record seen into it; attributes of others stay."""
        if seen is None:
            return Call(DYNAMODB, "PutItem", {**self._inserting, "Item": item})
        if self.layout.is_foreign(seen):
            return Call(DYNAMODB, "UpdateItem", {**self._refusing, **self._changing(item, self.condition(seen))})
        update, values, key = self._update_of(item)
        values.update(self.layout.version_of(seen))
        body = {**self._swapping, "Key": key, "UpdateExpression": update, "ExpressionAttributeValues": values}
        return Call(DYNAMODB, "UpdateItem", body)

    def transact(self, item: Item, seen: Record | None, effects: Sequence[Mapping[str, object]]) -> Call:
        """Write as :meth:`write`, and with it all effects."""
        common: Body = {"TableName": self.table, "ReturnValuesOnConditionCheckFailure": ALL_OLD}
        if seen is None:
            own = {"Put": {**common, **self._absent, "Item": item}}
        else:
            own = {"Update": {**common, **self._changing(item, self.condition(seen))}}
        return Call(DYNAMODB, "TransactWriteItems", {**self._metered, "TransactItems": [own, *effects]})

    def _changing(self, item: Item, condition: Body) -> Body:
        update, values, key = self._update_of(item)
        values.update(_mapping(condition.get("ExpressionAttributeValues", {})))
        changes: Body = {"Key": key, "UpdateExpression": update, "ExpressionAttributeValues": values}
        return {**condition, **changes, "ExpressionAttributeNames": self._names}

    def _update_of(self, item: Item) -> tuple[str, Body, Item]:
        """Return the update that makes a record an item, its values, and the item's key, which comes first in it."""
        names = tuple(item)
        update = self._updates.get(names)
        if update is None:
            update = self._updates[names] = self._expression(names[len(self._keys) :])
        values: Body = dict(zip(self._values, islice(item.values(), len(self._keys), None), strict=False))
        return update, values, {name: item[name] for name in self._keys}

    def _expression(self, names: tuple[str, ...]) -> str:
        """Return the update that sets these attributes, removes our others and leaves the rest."""
        update = "SET " + ", ".join(f"{self._marks[name]} = :n{n}" for n, name in enumerate(names))
        if gone := [mark for name, mark in self._marks.items() if name not in names]:
            update += " REMOVE " + ", ".join(gone)
        return update

    def delete(self, seen: Record | Damaged) -> Call:
        """Delete the record seen."""
        if isinstance(seen, Damaged):
            item = cast("Item", seen.seen)
            key = {part.name: item[part.name] for part in self.layout.parts}
            was = {name: item.get(name) for name in self.layout.attributes}
            return Call(DYNAMODB, "DeleteItem", {**self._refusing, **self._unchanged(was), "Key": key})
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

    def _unchanged(self, seen: Mapping[str, Value | None]) -> Body:
        """Return the condition that attributes still are what they were, None for one that was absent."""
        marks = {self._marks[name]: was for name, was in seen.items()}
        terms = [
            f"attribute_not_exists({mark})" if was is None else f"{mark} = :{mark[1:]}x" for mark, was in marks.items()
        ]
        body: Body = {
            "ConditionExpression": " AND ".join(terms),
            "ExpressionAttributeNames": {mark: self._names[mark] for mark in marks},
        }
        values = {f":{mark[1:]}x": was for mark, was in marks.items() if was is not None}
        return {**body, "ExpressionAttributeValues": values} if values else body

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


def _mapping(value: object) -> Mapping[str, object]:
    assert isinstance(value, Mapping)
    return value


def _name(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _text(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"
