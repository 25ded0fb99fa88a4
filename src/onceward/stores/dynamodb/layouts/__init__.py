"""The layouts of tables that other systems made, by the name that a URL gives them."""

from collections.abc import Mapping
from typing import Final

from onceward.stores.dynamodb.items import Layout
from onceward.stores.dynamodb.layouts.plain import Plain
from onceward.stores.dynamodb.layouts.powertools import Powertools

PRESETS: Final = {"powertools": Powertools, "plain": Plain}


def preset(
    name: str, partition: str | None = None, sort: str | None = None, names: Mapping[str, str] | None = None
) -> Layout:
    """Return the layout of another system's table: "powertools" or "plain" (``docs/how-to/migrate.md``).

    ``names`` are the table's names for attributes, by the names that they usually have: ``{"expiration": "ttl"}``.

    Raises:
        ValueError: there is no such preset, or the table's keys or names are not valid.
    """
    if name not in PRESETS:
        raise ValueError(f"preset={name!r}: there are {' and '.join(PRESETS)}")
    return PRESETS[name](partition or "id={key}", sort, names)
