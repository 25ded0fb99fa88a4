"""The requests to DynamoDB that the verbs need, with their conditions."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from onceward.core.record import Record
from onceward.stores.contract import Damaged
from onceward.stores.dynamodb.items import NULL, Item, Layout, Value, number
from onceward.wire.calls import Call, Service

DYNAMODB: Final = Service("DynamoDB", "dynamodb", "DynamoDB_20120810")
STATEMENTS: Final = 25  # of one BatchExecuteStatement: DynamoDB's own limit
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
        attribute: Value = {"S": value} if isinstance(value, str) else {"N": number(float(value))}
        self._values[mark] = attribute
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
        if self._names:
            body["ExpressionAttributeNames"] = {mark: name for name, mark in self._names.items()}
        return body | ({"ExpressionAttributeValues": self._values} if self._values else {})


class Requests:
    """Makes the calls for one table. ``metered`` calls ask for the capacity that they consume."""

    def __init__(self, table: str, layout: Layout, *, metered: bool = False) -> None:
        self.table = table
        self.layout = layout
        self._metered: Body = {"ReturnConsumedCapacity": "TOTAL"} if metered else {}
        self.common: Body = {"TableName": table, **self._metered}
        self._plain: Body = {"TableName": table, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        self._refusing = {**self._plain, **self._metered}
        self._absent: Body = {
            "ConditionExpression": "attribute_not_exists(#k)",
            "ExpressionAttributeNames": {"#k": layout.parts[0].name},
        }
        self._marks = {name: f"#n{n}" for n, name in enumerate(layout.attributes)}
        self._values = {name: f":n{n}" for n, name in enumerate(layout.attributes)}
        self._before = {name: f":b{n}" for n, name in enumerate(layout.attributes)}
        # By what changes, and what of that is not NULL: there are few such sets.
        self._updates: dict[tuple[str, ...], Body] = {}
        self._statements: dict[tuple[object, ...], str] = {}
        self._inserting: Body = {**self._refusing, **self._absent}

    def write(self, item: Item, seen: Record | None) -> Call:
        """Write an item if its key is absent, or make its changes to the record seen. Attributes of others stay."""
        if seen is None:
            return Call(DYNAMODB, "PutItem", {**self._inserting, "Item": item})
        body = self._changing(item, seen)
        return Call(DYNAMODB, "UpdateItem", body if not self._metered else body | self._metered)

    def transact(self, item: Item, seen: Record | None, effects: Sequence[Mapping[str, object]]) -> Call:
        """Write as :meth:`write`, and with it all effects."""
        if seen is None:
            own: Body = {"Put": {**self._plain, **self._absent, "Item": item}}
        else:
            own = {"Update": self._changing(item, seen)}
        return Call(DYNAMODB, "TransactWriteItems", {**self._metered, "TransactItems": [own, *effects]})

    def _changing(self, changes: Item, seen: Record) -> Body:
        """Return the update that makes changes to the record seen."""
        was = self.layout.version_of(seen)
        values: Body = {self._values[name]: value for name, value in changes.items() if value is not NULL}
        values |= {self._before[name]: value for name, value in was.items() if value is not None}
        form = (*changes, *values)
        update = self._updates.get(form) or self._updates.setdefault(form, self._update(changes, was))
        return {**update, "Key": self.layout.key(seen.key), "ExpressionAttributeValues": values}

    def _update(self, changes: Item, was: Mapping[str, Value | None]) -> Body:
        """Return what all updates of these attributes have in common."""
        sets = [f"{self._marks[name]} = {self._values[name]}" for name, value in changes.items() if value is not NULL]
        expression = f"SET {', '.join(sets)}" if sets else ""
        if removals := [self._marks[name] for name, value in changes.items() if value is NULL]:
            expression += " REMOVE " + ", ".join(removals)
        names = {self._marks[name]: name for name in (*changes, *was)}
        condition = self._unchanged(was)
        return {**self._plain, **condition, "UpdateExpression": expression, "ExpressionAttributeNames": names}

    def delete(self, seen: Record | Damaged) -> Call:
        """Delete the record seen."""
        layout = self.layout
        if isinstance(seen, Damaged):
            item = cast("Item", seen.seen)
            key = {part.name: item[part.name] for part in layout.parts}
            was = {name: item.get(name) for name in layout.attributes}
        else:
            key, was = layout.key(seen.key), layout.version_of(seen)
        return Call(DYNAMODB, "DeleteItem", {**self._refusing, **self._unchanged(was), "Key": key})

    def get(self, key: str, *, consistent: bool) -> Call:
        """Read one item."""
        return Call(DYNAMODB, "GetItem", {**self.common, "Key": self.layout.key(key), "ConsistentRead": consistent})

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
        for part in self.layout.parts:
            if not part.holds_key:
                terms.add(terms.compared(part.name, "=", part.prefix))
            elif text := part.prefix + ("" if self.layout.shared else prefix):
                terms.add(terms.begins(part.name, text))
        return terms

    def _unchanged(self, seen: Mapping[str, Value | None]) -> Body:
        """Return the condition that attributes have not changed; None stands for an absent one."""
        marks, before = self._marks, self._before
        terms = [
            f"attribute_not_exists({marks[name]})" if was is None else f"{marks[name]} = {before[name]}"
            for name, was in seen.items()
        ]
        body: Body = {
            "ConditionExpression": " AND ".join(terms),
            "ExpressionAttributeNames": {marks[name]: name for name in seen},
        }
        values = {before[name]: was for name, was in seen.items() if was is not None}
        return {**body, "ExpressionAttributeValues": values} if values else body

    def statements(self, all_of_them: Sequence[Body]) -> tuple[Call, ...]:
        """Run statements that all write, or all read. Each succeeds or fails alone."""
        return tuple(
            Call(DYNAMODB, "BatchExecuteStatement", {**self._metered, "Statements": all_of_them[at : at + STATEMENTS]})
            for at in range(0, len(all_of_them), STATEMENTS)
        )

    def reading(self, key: str) -> Body:
        """Return the statement that reads an item."""
        where = self.layout.key(key)
        terms = " AND ".join(f"{_name(name)} = ?" for name in where)
        statement = f"SELECT * FROM {_name(self.table)} WHERE {terms}"
        return {"Statement": statement, "Parameters": list(where.values()), "ConsistentRead": True}

    def inserting(self, item: Item) -> Body:
        """Return the statement that writes an item if its key is absent."""
        form = (*item, "INSERT")
        if (statement := self._statements.get(form)) is None:
            fields = ", ".join(f"{_name(name, _TEXT)}: ?" for name in item)
            self._statements[form] = statement = f"INSERT INTO {_name(self.table)} VALUE {{{fields}}}"
        return {"Statement": statement, "Parameters": list(item.values())}

    def swapping(self, changes: Item, seen: Record) -> Body:
        """Return the statement that makes changes to the record seen."""
        where = self.layout.key(seen.key) | self.layout.version_of(seen)
        values = [value for value in where.values() if value is not None]
        form = (*changes, len(values))
        if (statement := self._statements.get(form)) is None:
            sets = ", ".join(f"{_name(name)} = ?" for name in changes)
            terms = " AND ".join(
                f"{_name(name)} {'IS MISSING' if was is None else '= ?'}" for name, was in where.items()
            )
            self._statements[form] = statement = f"UPDATE {_name(self.table)} SET {sets} WHERE {terms}"
        return {"Statement": statement, "Parameters": [*changes.values(), *values]}


def _name(text: str, mark: str = _NAME) -> str:
    """Return a name, or with the mark of texts a text, in quotes."""
    return f"{mark}{text.replace(mark, mark * 2)}{mark}"
