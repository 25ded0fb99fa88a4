"""Values in a table of DynamoDB: ``dynamodb://TABLE?region=eu-west-1&key=key``.

The ``Date`` header of DynamoDB's answers is the clock. Let the table's TTL delete what has the attribute ``expires_at``.
"""

import math
from base64 import b64decode, b64encode
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final, cast

from onceward.aws.targets.sending import AwsClient
from onceward.core.urls import shown_url
from onceward.pipelines.keyvalue import Values, options_of
from onceward.stores import url_parts
from onceward.wire.calls import Service, ServiceAnswer, code_of, message_of
from onceward.wire.endpoints import from_environment


def typed(value: object) -> dict[str, object]:
    """Return a value as an attribute value (DynamoDB API Reference, AttributeValue); raises ValueError if DynamoDB has none like it."""
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
            return int(value) if value.removeprefix("-").isdigit() else float(value)
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


_DYNAMODB: Final = Service("DynamoDB", "dynamodb", "DynamoDB_20120810", "1.0")
_OPTIONS: Final = frozenset({"endpoint", "key", "region"})


class DynamoValues(Values):
    """An item has the key ``SPACE:KEY``, and ``value``, and ``expires_at``, in seconds."""

    def __init__(self, url: str, space: str, folder: str) -> None:
        options = options_of(url, _OPTIONS)
        parts = url_parts(url)[0]
        self._table, self._key = parts.netloc, options.get("key", "key")
        if not self._table or parts.path.strip("/"):
            raise ValueError(f"{shown_url(url)!r}: name the table, as in dynamodb://prices?region=eu-west-1")
        self._space = f"{space}:" if space else ""
        endpoint = options.get("endpoint") or from_environment("dynamodb")
        self._client = AwsClient(_DYNAMODB, options.get("region"), endpoint)

    def get(self, key: str) -> Any:
        """Return a value."""
        answer = self._ask("GetItem", {"Key": self._name(key), "ConsistentRead": True})
        item = cast("dict[str, dict[str, Any]] | None", cast("dict[str, Any]", answer.body).get("Item"))
        if item is None or ("expires_at" in item and float(item["expires_at"]["N"]) <= _date(answer)):
            return None
        return plain(item["value"]) if "value" in item else None

    def set(self, key: str, value: Any, ttl: float | None) -> None:
        """Set a value."""
        item = {**self._name(key), "value": typed(value)}
        if ttl is not None:
            now = _date(self._ask("GetItem", {"Key": self._name(key), "ProjectionExpression": "expires_at"}))
            item["expires_at"] = {"N": str(math.ceil(now + ttl))}
        self._ask("PutItem", {"Item": item})

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _name(self, key: str) -> dict[str, Any]:
        return {self._key: {"S": self._space + key}}

    def _ask(self, action: str, body: dict[str, Any]) -> ServiceAnswer:
        answer = self._client.ask(action, {"TableName": self._table, **body})
        if answer.status != 200:
            raise ConnectionError(f"{action} on {self._table}: {code_of(answer)} ({message_of(answer)})")
        return answer


def _date(answer: ServiceAnswer) -> float:
    if answer.date is None:
        raise ConnectionError("the answer has no Date, so onceward cannot tell what has expired")
    return answer.date
