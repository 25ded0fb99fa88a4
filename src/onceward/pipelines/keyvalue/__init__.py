"""Where ``lookup`` and ``store`` keep values by key: one class a kind, and a line in ``PLACES``.

Each has the methods of :class:`Values`. A store's own clock stamps and judges when a value expires.
"""

from typing import Any, Final, cast

from onceward.lazily import at
from onceward.pipelines.kit import Field, Kit
from onceward.stores import url_parts

# Scheme → module and class.
PLACES: Final = {
    "dynamodb": "onceward.pipelines.keyvalue.dynamodb:DynamoValues",
    "json": "onceward.pipelines.keyvalue.json:JsonValues",
    "redis": "onceward.pipelines.keyvalue.redis:RedisValues",
    "rediss": "onceward.pipelines.keyvalue.redis:RedisValues",
}


class Values:
    """Values by key. Any number of threads can use one. An error is any exception.

    Attributes:
        writes: whether it can be written to.
    """

    writes = True

    def __init__(self, url: str, space: str, folder: str) -> None:
        """Open it at a URL; raises ValueError if that is not valid. It makes no request. Relative paths begin in ``folder``."""

    def get(self, key: str) -> Any:
        """Return the value of a key; None if there is none, or it has expired."""
        raise NotImplementedError

    def set(self, key: str, value: Any, ttl: float | None) -> None:
        """Set the value of a key, for so many seconds."""

    def close(self) -> None:
        """Close its connections."""


def opened(kit: "Kit", field: "Field", url: str, space: str, *, writes: bool) -> Values | None:
    """Return the values at a URL, or note what is wrong with it. They are closed when the run ends."""
    with kit.noting(field, ValueError, OSError):  # also a file that cannot be read
        scheme = url_parts(url)[0].scheme
        if scheme not in PLACES:
            raise ValueError(f"{scheme or url!r} cannot hold values: give one of {', '.join(sorted(PLACES))}")
        if scheme.startswith("redis") and not kit.needs(field, "redis", "redis"):
            return None
        values = cast("Values", at(PLACES[scheme])(url, space, str(kit.folder)))
        if writes and not values.writes:
            kit.mistake(field, f"values of {scheme} are only read")
        kit.closing(values.close)
        return values
    return None


def options_of(url: str, names: frozenset[str]) -> dict[str, str]:
    """Return the options of a URL; raises ValueError if one is unknown."""
    options = url_parts(url)[1]
    for name in options:
        if name not in names:
            raise ValueError(f"{name} is not an option here; there are {', '.join(sorted(names))}")
    return options
