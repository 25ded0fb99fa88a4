"""When the buffer of a checkpoint is full."""

from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from onceward.core.arguments import check_count

T = TypeVar("T")
_LONGEST: Final = 1e6  # seconds (eleven days): a longer age is a mistake


class Limits(NamedTuple, Generic[T]):
    """When a buffer is full. None means no limit. ``size`` counts an item's bytes in another way."""

    items: int | None
    bytes: int | None
    seconds: float | None
    size: Callable[[T], int] | None

    def checked(self) -> "Limits[T]":
        """Return self. Raises ValueError, which names the option and valid values."""
        for name, most in (("count", self.items), ("bytes", self.bytes)):
            if most is not None:
                check_count(name, most)
        age: object = self.seconds
        if age is not None and (isinstance(age, bool) or not isinstance(age, int | float) or not 0 < age <= _LONGEST):
            raise ValueError(f"age={age!r}: give a positive number of seconds, at most {_LONGEST:.0e}, or None")
        return self

    def size_of(self, item: T) -> int:
        """Return an item's bytes: by ``size``, or else the length of bytes, of text as UTF-8, of anything else as JSON.

        Raises:
            TypeError: it cannot be written as JSON.
        """
        if self.size is not None:
            return self.size(item)
        if isinstance(item, bytes | bytearray):
            return len(item)
        if isinstance(item, str):
            return len(item.encode("utf-8", "surrogatepass"))
        try:
            return len(msgspec.json.encode(item))
        except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise TypeError(
                f"bytes= cannot count a {type(item).__name__}, so the item was not added: {error}. Give size=, a callable that returns "
                "the bytes of an item"
            ) from error
