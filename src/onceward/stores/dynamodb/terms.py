"""The expressions of one request to DynamoDB, with their names and values."""

from typing import Any

from onceward.stores.dynamodb.items import Item, Value, number


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

    def body(self, **expressions: str) -> dict[str, Any]:
        """Return other expressions, a filter of the conditions, and the names and values of all."""
        body: dict[str, Any] = dict(expressions)
        if self._all:
            body["FilterExpression"] = " AND ".join(self._all)
        body["ExpressionAttributeNames"] = {mark: name for name, mark in self._names.items()}
        return body | ({"ExpressionAttributeValues": self._values} if self._values else {})
