"""The requests to DynamoDB that the verbs need, with their conditions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from onceward.core.record import Record
from onceward.stores.contract import Damaged
from onceward.stores.dynamodb.items import NULL, Item, Layout, Value, number
from onceward.wire.calls import Call, Service

DYNAMODB: Final = Service("DynamoDB", "dynamodb", "DynamoDB_20120810")
ALL_OLD: Final = "ALL_OLD"
_NAME, _TEXT = '"', "'"  # the quotes of PartiQL
Body = dict[str, Any]


class Terms:
    """Collects conditions. All of them must hold."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._values: Item = {}
        self._all: list[str] = []

    def name(self, attribute: str) -> str:
        """Return what stands for an attribute in an expression."""
        return self._names.setdefault(attribute, f"#t{len(self._names)}")

    def value(self, value: str | float) -> str:
        """Return what stands for a text or a number in an expression."""
        mark = f":t{len(self._values)}"
        made: Value = {"S": value} if isinstance(value, str) else {"N": number(float(value))}
        self._values[mark] = made
        return mark

    def compared(self, attribute: str, sign: str, value: str | float) -> str:
        """Return a comparison."""
        return f"{self.name(attribute)} {sign} {self.value(value)}"

    def begins(self, attribute: str, text: str) -> str:
        """Return the condition that an attribute begins with a text."""
        return f"begins_with({self.name(attribute)}, {self.value(text)})"

    def add(self, *conditions: str) -> None:
        """Add conditions."""
        self._all += conditions

    def body(self, **expressions: str) -> Body:
        """Return other expressions, a filter of the conditions, and the names and values of all."""
        body: Body = dict(expressions)
        if self._all:
            body["FilterExpression"] = " AND ".join(self._all)
        body["ExpressionAttributeNames"] = {mark: name for name, mark in self._names.items()}
        return body | ({"ExpressionAttributeValues": self._values} if self._values else {})


class Requests:
    """Makes the calls for one table. ``metered`` calls ask for the capacity that they consume."""

    def __init__(self, table: str, layout: Layout, *, metered: bool = False) -> None:
        self.table = table
        self.layout = layout
        self._metered: Body = {"ReturnConsumedCapacity": "TOTAL"} if metered else {}
        self.common: Body = {"TableName": table, **self._metered}
        self._plain: Body = {"TableName": table, "ReturnValuesOnConditionCheckFailure": ALL_OLD}
        self._refusing = {**self._plain, **self._metered}
        self._absent: Body = {
            "ConditionExpression": "attribute_not_exists(#k)",
            "ExpressionAttributeNames": {"#k": layout.parts[0].name},
        }
        self._marks = {name: f"#n{n}" for n, name in enumerate(layout.attributes)}
        self._values = {name: f":n{n}" for n, name in enumerate(layout.attributes)}
        # By what changes, and what of that is not NULL: there are few such sets.
        self._updates: dict[tuple[str, ...], Body] = {}
        self._statements: dict[tuple[str, ...], str] = {}
        seen = (":o", ":f", ":b", *(f":v{n}" for n in range(len(layout.version) - 3)))
        self._version: Body = {
            "ConditionExpression": " AND ".join(
                f"{self._marks[name]} = {value}" for name, value in zip(layout.version, seen, strict=True)
            ),
            "ExpressionAttributeNames": {self._marks[name]: name for name in layout.version},
        }
        self._inserting: Body = {**self._refusing, **self._absent}

    def write(self, item: Item, seen: Record | None) -> Call:
        """Write an item if its key is absent, or make its changes to the record seen. Attributes of others stay."""
        if seen is None:
            return Call(DYNAMODB, "PutItem", {**self._inserting, "Item": item})
        return Call(DYNAMODB, "UpdateItem", self._changing(item, seen) | self._metered)

    def transact(self, item: Item, seen: Record | None, effects: Sequence[Mapping[str, object]]) -> Call:
        """Write as :meth:`write`, and with it all effects."""
        if seen is None:
            own: Body = {"Put": {**self._plain, **self._absent, "Item": item}}
        else:
            own = {"Update": self._changing(item, seen)}
        return Call(DYNAMODB, "TransactWriteItems", {**self._metered, "TransactItems": [own, *effects]})

    def _changing(self, changes: Item, seen: Record) -> Body:
        """Return the update that makes changes to the record seen."""
        values: Body = {self._values[name]: value for name, value in changes.items() if value is not NULL}
        form = (*changes, *values)
        update = self._updates.get(form) or self._updates.setdefault(form, self._update(changes))
        own: Body = {"Key": self.layout.key(seen.key), "ExpressionAttributeValues": values}
        if self.layout.is_foreign(seen):
            condition = self._unchanged(self.layout.as_seen(seen))
            values.update(condition["ExpressionAttributeValues"])
            return {**update, **own, "ConditionExpression": condition["ConditionExpression"]}
        values.update(self.layout.version_of(seen))
        return {**update, **own}

    def _update(self, changes: Item) -> Body:
        """Return what all updates of these attributes have in common."""
        sets = [f"{self._marks[name]} = {self._values[name]}" for name, value in changes.items() if value is not NULL]
        expression = f"SET {', '.join(sets)}" if sets else ""
        if gone := [self._marks[name] for name, value in changes.items() if value is NULL]:
            expression += " REMOVE " + ", ".join(gone)
        names = {self._marks[name]: name for name in (*changes, *self.layout.version)}
        return {**self._plain, **self._version, "UpdateExpression": expression, "ExpressionAttributeNames": names}

    def delete(self, seen: Record | Damaged) -> Call:
        """Delete the record seen."""
        layout = self.layout
        if isinstance(seen, Damaged):
            item = cast("Item", seen.seen)
            key = {part.name: item[part.name] for part in layout.parts}
            condition = self._unchanged({name: item.get(name) for name in layout.attributes})
        elif layout.is_foreign(seen):
            key, condition = layout.key(seen.key), self._unchanged(layout.as_seen(seen))
        else:
            values = layout.version_of(seen)
            key, condition = layout.key(seen.key), {**self._version, "ExpressionAttributeValues": values}
        return Call(DYNAMODB, "DeleteItem", {**self._refusing, **condition, "Key": key})

    def get(self, key: str, *, consistent: bool) -> Call:
        """Read one item."""
        return Call(DYNAMODB, "GetItem", {**self.common, "Key": self.layout.key(key), "ConsistentRead": consistent})

    def get_many(self, keys: Sequence[Item]) -> Call:
        """Read up to 100 items."""
        return Call(
            DYNAMODB,
            "BatchGetItem",
            {**self._metered, "RequestItems": {self.table: {"Keys": keys, "ConsistentRead": True}}},
        )

    def scan(self, start: Item | None, limit: int | None, terms: Terms) -> Call:
        """Read a page of the items that meet some terms."""
        body = {**self.common, **terms.body()}
        if start is not None:
            body["ExclusiveStartKey"] = start
        if limit is not None:
            body["Limit"] = limit
        return Call(DYNAMODB, "Scan", body)

    def having(self, prefix: str) -> Terms:
        """Return the filter of records whose key starts with ``prefix``."""
        terms = Terms()
        terms.add(*(f"attribute_exists({terms.name(name)})" for name in self.layout.marks))
        if self.layout.statuses:
            terms.add(f"{terms.name(self.layout.status)} IN ({', '.join(map(terms.value, self.layout.statuses))})")
        for part in self.layout.parts:
            texts = [part.prefix + start for start in self.layout.starts(prefix)] if part.holds_key else [part.prefix]
            if "" not in texts:
                ways = [
                    terms.begins(part.name, text) if part.holds_key else terms.compared(part.name, "=", text)
                    for text in texts
                ]
                terms.add(f"({' OR '.join(ways)})")
        return terms

    def _unchanged(self, seen: Mapping[str, Value | None]) -> Body:
        """Return the condition that attributes have not changed; None stands for an absent one."""
        marks = {self._marks[name]: was for name, was in seen.items()}
        terms = [
            f"attribute_not_exists({mark})" if was is None else f"{mark} = :{mark[1:]}x" for mark, was in marks.items()
        ]
        body: Body = {
            "ConditionExpression": " AND ".join(terms),
            "ExpressionAttributeNames": {self._marks[name]: name for name in seen},
        }
        values = {f":{mark[1:]}x": was for mark, was in marks.items() if was is not None}
        return {**body, "ExpressionAttributeValues": values} if values else body

    def statements(self, statements: Sequence[Body]) -> Call:
        """Run up to 25 conditional writes. Each succeeds or fails alone."""
        return Call(DYNAMODB, "BatchExecuteStatement", {**self._metered, "Statements": statements})

    def inserting(self, item: Item) -> Body:
        """Return the statement that writes an item if its key is absent."""
        form = (*item, "INSERT")
        if (statement := self._statements.get(form)) is None:
            fields = ", ".join(f"{_name(name, _TEXT)}: ?" for name in item)
            self._statements[form] = statement = f"INSERT INTO {_name(self.table)} VALUE {{{fields}}}"
        return {"Statement": statement, "Parameters": list(item.values())}

    def swapping(self, changes: Item, seen: Record) -> Body:
        """Return the statement that makes changes to the record seen."""
        form = tuple(changes)
        statement = self._statements.get(form) or self._statements.setdefault(form, self._statement(form))
        where = [*self.layout.key(seen.key).values(), *self.layout.version_of(seen).values()]
        return {"Statement": statement, "Parameters": [*changes.values(), *where]}

    def _statement(self, changed: Iterable[str]) -> str:
        where = [*(part.name for part in self.layout.parts), *self.layout.version]
        changes, terms = ([f"{_name(name)} = ?" for name in names] for names in (changed, where))
        return f"UPDATE {_name(self.table)} SET {', '.join(changes)} WHERE {' AND '.join(terms)}"


def _name(text: str, mark: str = _NAME) -> str:
    """Return a name, or with the mark of texts a text, in quotes."""
    return f"{mark}{text.replace(mark, mark * 2)}{mark}"
