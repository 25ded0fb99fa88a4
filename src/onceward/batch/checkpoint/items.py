"""What is read from an item of a checkpoint before it is added: its key, its fingerprint and its size."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

import msgspec

from onceward.errors import KeyMissing
from onceward.keys.ledger_keys import fingerprint_of

if TYPE_CHECKING:
    from onceward.claim.signatures import KeySource

T = TypeVar("T")
_LONGEST: Final = 1e6  # seconds, eleven days: what waits longer for a flush is forgotten, or a mistake


class Limits(NamedTuple):
    """When a buffer is full; None is never."""

    items: int | None
    bytes: int | None
    seconds: float | None

    def checked(self) -> "Limits":
        """Return self, or raise TypeError or ValueError that names the option and what would be right."""
        for name, most in (("count", self.items), ("bytes", self.bytes)):
            if most is not None and (type(most) is not int or most < 1):
                raise ValueError(f"{name}={most!r}: give a whole number, at least 1, or None")
        age: object = self.seconds
        if age is not None and (isinstance(age, bool) or not isinstance(age, int | float) or not 0 < age <= _LONGEST):
            raise ValueError(f"age={age!r}: give a positive number of seconds, at most {_LONGEST:.0e}, or None")
        return self


class ItemReader(Generic[T]):
    """Reads key, fingerprint and size from an item.

    Args:
        key: a JMESPath expression over the item, or a callable that is given it.
        fingerprint: the same; or True for the whole item, or None for no fingerprint.
        size: gives an item's bytes; None is their default; not called unless ``bytes`` are counted.

    Raises:
        TypeError, ValueError: an option does not fit.
    """

    def __init__(
        self, key: "KeySource", fingerprint: "KeySource | bool | None", size: Callable[[T], int] | None
    ) -> None:
        self._key = _source("key", key)
        self._fingerprint: Callable[[T], object] | None = None
        if fingerprint is True:
            self._fingerprint = lambda item: item
        elif fingerprint is not None and fingerprint is not False:
            self._fingerprint = _source("fingerprint", fingerprint)
        self._size = size

    def key(self, item: T) -> object:
        """Return an item's key; raises KeyMissing."""
        try:
            return self._key(item)
        except (LookupError, AttributeError) as error:  # of a callable: order["id"], order.id
            raise KeyMissing(f"the key is missing from the item, which was not added: key= raised {error!r}") from error

    def fingerprint(self, item: T) -> str | None:
        """Return an item's fingerprint, or None when none is asked for."""
        return None if self._fingerprint is None else fingerprint_of(self._fingerprint(item))

    def size(self, item: T) -> int:
        """Return an item's bytes: those of ``size``, or of bytes and text as they are, or of anything else as JSON.

        Raises:
            TypeError: it cannot be written as JSON.
        """
        return _encoded(item) if self._size is None else self._size(item)


def _source(option: str, source: "KeySource") -> Callable[[object], object]:
    if callable(source):
        return source
    if not isinstance(source, str):
        raise TypeError(f"{option}={source!r}: give a JMESPath expression over the item, or a callable")
    from onceward.keys.paths import Path

    path = Path(source, option)
    if not path.fields and not path.uses_whole:
        raise ValueError(f"{option}={source!r} is the same for every item; name a field of it, as in 'order.id'")
    within = Path(f"item | {source}", option)  # an object is taken apart where it stands in a dict

    def read(item: object) -> object:
        found = path.search(item) if type(item) is dict else within.search({"item": item})
        if found is None and option == "key":
            raise KeyMissing(
                f"key={source!r} found nothing in the item, which was not added. Check the input, or choose a field that it "
                "always has"
            )
        return found

    return read


def _encoded(item: object) -> int:
    if isinstance(item, bytes | bytearray):
        return len(item)
    if isinstance(item, str):
        return len(item.encode("utf-8", "surrogatepass"))
    try:
        return len(msgspec.json.encode(item))
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise TypeError(
            f"bytes= cannot count a {type(item).__name__}, which was not added: {error}. Give size=, a callable that returns the "
            "bytes of an item"
        ) from error
