"""The rules as OpenAPI, for any framework: the header of the key."""

from typing import Any, Final

from onceward.http.route import Route
from onceward.http.rules import Rules

Schema = dict[str, Any]  # an OpenAPI document, or a part of one

_METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace")


def document(schema: Schema, rules: Rules) -> Schema:
    """Add the idempotency key to each operation that ``rules`` cover.

    Args:
        schema: an OpenAPI document, which is changed in place. A second call changes nothing.
        rules: their paths are compared with those of the document. There, too, ``{name}`` is one part.

    Returns:
        ``schema``.
    """
    for path, operations in schema.get("paths", {}).items():
        for method in _METHODS:
            if method in operations:
                route = rules.route(method.upper(), path)
                if route is not None:
                    describe(operations[method], rules, route)
    return schema


def describe(operation: Schema, rules: Rules, route: Route) -> None:
    """Add the idempotency key to one operation."""
    if route.read is None:
        parameters = operation.setdefault("parameters", [])
        if not any(held.get("in") == "header" and held.get("name", "").lower() == route.header for held in parameters):
            parameters.append(_header(rules, route))


def _header(rules: Rules, route: Route) -> Schema:
    least, most = rules.length
    return {
        "name": route.key,
        "in": "header",
        "required": route.required,
        "description": "Names this operation. Choose a new one for each operation, such as a UUID, and send the same one with "
        f"each retry. {least} to {most} characters in quotes, or without quotes if it has no comma, semicolon, backslash or "
        "space. See also draft-ietf-httpapi-idempotency-key-header.",
        "schema": {"type": "string"},
        "example": '"8e03978e-40d5-43e8-bc93-6894a57f9324"',
    }
