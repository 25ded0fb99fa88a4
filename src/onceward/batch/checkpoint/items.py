"""Reads key, fingerprint and size of an item before a checkpoint adds it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

import msgspec

from onceward.core.arguments import check_count
from onceward.keys.paths import fixed
from onceward.keys.reading import KeyReader

if TYPE_CHECKING:
    from onceward.keys.reading import KeySource

T = TypeVar("T")
_ITEM: Final = fixed("item", "what you add")
_LONGEST: Final = 1e6  # seconds (eleven days): a longer age is a mistake


class Limits(NamedTuple):
    """When a buffer is full. None means no limit."""

    items: int | None
    bytes: int | None
    seconds: float | None

    def checked(self) -> "Limits":
        """Return self. Raises ValueError, which names the option and valid values."""
        for name, most in (("count", self.items), ("bytes", self.bytes)):
            if most is not None:
                check_count(name, most)
        age: object = self.seconds
        if age is not None and (isinstance(age, bool) or not isinstance(age, int | float) or not 0 < age <= _LONGEST):
            raise ValueError(f"age={age!r}: give a positive number of seconds, at most {_LONGEST:.0e}, or None")
        return self


class ItemReader(Generic[T]):
    """Reads key, fingerprint and size from an item; the arguments are those of ``once.checkpoint``."""

    def __init__(
        self, key: "KeySource", fingerprint: "KeySource | bool | None", size: Callable[[T], int] | None
    ) -> None:
        self._keys = KeyReader(key, _ITEM.start if fingerprint is True else fingerprint, _ITEM)
        self._size = size

    def read(self, item: T) -> tuple[object, str | None]:
        """Return an item's key and fingerprint. Raises KeyMissing."""
        arguments = {"item": item}
        return self._keys.key(arguments, arguments), self._keys.fingerprint(arguments, arguments)

    def size(self, item: T) -> int:
        """Return an item's bytes: by ``size``, or else the length of bytes, of text as UTF-8, of anything else as JSON.

        Raises:
            TypeError: it cannot be written as JSON.
        """
        return _encoded(item) if self._size is None else self._size(item)


def _encoded(item: object) -> int:
    if isinstance(item, bytes | bytearray):
        return len(item)
    if isinstance(item, str):
        return len(item.encode("utf-8", "surrogatepass"))
    try:
        return len(msgspec.json.encode(item))
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise TypeError(
            f"bytes= cannot count a {type(item).__name__}, so the item was not added: {error}. Give size=, a callable that returns the "
            "bytes of an item"
        ) from error
