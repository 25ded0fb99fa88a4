"""Values of a message as DynamoDB's attribute values, and back (DynamoDB API Reference, AttributeValue)."""

import math
from base64 import b64decode, b64encode
from collections.abc import Mapping
from decimal import Decimal
from typing import Any


def typed(value: object) -> dict[str, object]:
    """Return a value as an attribute value; raises ValueError if DynamoDB has none like it."""
    match value:
        case None:
            return {"NULL": True}
        case bool():
            return {"BOOL": value}
        case str():
            return {"S": value}
        case int() | Decimal():
            return {"N": str(value)}
        case float():
            if not math.isfinite(value):
                raise ValueError(f"{value!r}: DynamoDB has no such number")
            return {"N": str(Decimal(repr(value)))}
        case bytes():
            return {"B": b64encode(value).decode()}
        case list() | tuple():
            return {"L": [typed(one) for one in value]}
        case Mapping():
            return {"M": item(value)}
    raise ValueError(f"a {type(value).__name__} cannot be an attribute")


def item(value: object) -> dict[str, object]:
    """Return an object as an item; raises ValueError if it is none."""
    if not isinstance(value, Mapping):
        raise ValueError(f"an item is an object, and this is a {type(value).__name__}")
    return {str(name): typed(one) for name, one in value.items()}


def plain(attribute: Mapping[str, Any]) -> Any:
    """Return an attribute value as JSON has it. A set is a list, and a binary is bytes."""
    ((kind, value),) = attribute.items()
    match kind:
        case "N":
            return _number(value)
        case "NULL":
            return None
        case "L":
            return [plain(one) for one in value]
        case "M":
            return {name: plain(one) for name, one in value.items()}
        case "B":
            return b64decode(value)
        case "SS" | "NS" | "BS":
            return [plain({kind[0]: one}) for one in value]
    return value


def _number(text: str) -> int | float:
    number = Decimal(text)
    return (
        int(number) if number == number.to_integral_value() and "." not in text and "E" not in text else float(number)
    )
