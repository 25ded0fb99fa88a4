"""Reads what a script has packed as MessagePack.

A record that somebody else wrote can have texts that are no UTF-8, which msgspec refuses. Such an answer is read here, so that
the record can be shown and cleared.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.msgpack import decode

_STAND_IN = "surrogateescape"  # gives the same bytes back


class NotUtf8(dict[str, str]):
    """A record with a text that is no UTF-8."""

    def __getitem__(self, name: str) -> str:
        raise ValueError("a text is no UTF-8")


def unpacked(packed: bytes) -> Any:
    """Return what is packed."""
    try:
        return decode(packed)
    except UnicodeDecodeError:
        return _value(packed, 0)[0]


def flat_of(held: Mapping[str, str]) -> list[bytes]:
    """Return a hash as Redis gives it."""
    return [text.encode(errors=_STAND_IN) for pair in held.items() for text in pair]


def _value(packed: bytes, at: int) -> tuple[Any, int]:
    """Return the value at this place and where it ends: a small number, a text, a list or a map, as the scripts have them."""
    kind = packed[at]
    if kind < 0x80:
        return kind, at + 1
    if kind in (0xD9, 0xDA, 0xDB) or 0xA0 <= kind < 0xC0:
        size, at = _size(packed, at, 0x1F, 0xD9)
        return packed[at : at + size].decode(errors=_STAND_IN), at + size
    is_map = kind in (0xDE, 0xDF) or kind < 0x90
    size, at = _size(packed, at, 0x0F, 0xDD if is_map else 0xDB)
    values = []
    for _ in range(2 * size if is_map else size):
        value, at = _value(packed, at)
        values.append(value)
    return _hash(values) if is_map else values, at


def _hash(texts: list[str]) -> dict[str, str]:
    held = dict(zip(texts[::2], texts[1::2], strict=True))
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return NotUtf8(held)
    return held


def _size(packed: bytes, at: int, mask: int, base: int) -> tuple[int, int]:
    """Return the size of a text, list or map, and where its content begins. After ``base``, the kinds have 1, 2 and 4 bytes of size."""
    kind = packed[at]
    if kind < 0xC0:
        return kind & mask, at + 1
    width = 1 << (kind - base)
    return int.from_bytes(packed[at + 1 : at + 1 + width], "big"), at + 1 + width
