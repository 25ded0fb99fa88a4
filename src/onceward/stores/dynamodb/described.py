"""What DynamoDB says about a table: for ``create.py``, which makes it, and ``inspection.py``, which only looks."""

from collections.abc import Mapping
from typing import Any, Final

Document = Mapping[str, Any]
Keys = tuple[tuple[str, str], ...]  # names and types
SWITCHED_ON: Final = frozenset({"ENABLED", "ENABLING"})  # statuses of a TTL


def keys_of(described: Document) -> Keys:
    """Return the key attributes, HASH first."""
    types = {one["AttributeName"]: one["AttributeType"] for one in described["AttributeDefinitions"]}
    schema = sorted(described["KeySchema"], key=lambda one: str(one["KeyType"]))
    return tuple((one["AttributeName"], types[one["AttributeName"]]) for one in schema)


def index_of(described: Document, name: str) -> Document | None:
    """Return what is said about an index; None if there is none of that name."""
    indexes: list[Document] = described.get("GlobalSecondaryIndexes") or []
    return next((one for one in indexes if one["IndexName"] == name), None)


def written(keys: Keys) -> str:
    """Return key attributes as people write them: ``pk (S) and sk (S)``."""
    return " and ".join(f"{name} ({kind})" for name, kind in keys)


def is_on_demand(described: Document) -> bool:
    """Return whether it is billed by request. A table that never was has no summary."""
    return bool(described.get("BillingModeSummary", {}).get("BillingMode") == "PAY_PER_REQUEST")


def recovers(told: Document) -> bool:
    """Return whether an answer of DescribeContinuousBackups says that point-in-time recovery is on."""
    found = told.get("ContinuousBackupsDescription", {}).get("PointInTimeRecoveryDescription", {})
    return bool(found.get("PointInTimeRecoveryStatus") == "ENABLED")
