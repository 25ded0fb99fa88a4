"""Reads JSON that others have sent: one rule for bytes that are not quite JSON.

A byte order mark is skipped. Refused are a name that is there twice, NaN and Infinity, half of a surrogate pair, what is not UTF-8,
and an empty text. RFC 8259 leaves them to each reader, so two readers could see two messages.

msgspec reads first. Python's slower ``json``, which takes all of those, only reads what msgspec has refused, or what may have a name
twice.
"""

from collections.abc import Callable
from typing import Final

import msgspec

_DECODE: Final[Callable[[str | bytes], object]] = msgspec.json.Decoder().decode
_ENCODE: Final = msgspec.json.Encoder().encode
_BEGINS: Final = frozenset({"{", "[", '"', b"{", b"[", b'"'})


class NotJson(ValueError):
    """A text is no JSON. It says why.

    Attributes:
        almost: whether other readers may take it for JSON.
        looks: whether it begins like JSON.
    """

    def __init__(self, what: str, *, almost: bool, looks: bool) -> None:
        super().__init__(f"not JSON: {what}")
        self.almost, self.looks = almost, looks


def read_json(body: str | bytes, decode: Callable[[str | bytes], object] = _DECODE) -> object:
    """Return the value of JSON that somebody has sent.

    Args:
        body: the text; a byte order mark is skipped.
        decode: how its values are made; it raises as msgspec does.

    Raises:
        NotJson: it is none, or readers of JSON do not agree about it.
    """
    text = without_mark(body)
    try:
        value = decode(text)
        if _may_repeat_names(text, value):
            _read_leniently(text, _unique)
    except (msgspec.MsgspecError, ValueError, RecursionError, ArithmeticError) as error:
        raise _fault(text, error) from error
    return value


def without_mark(body: str | bytes) -> str | bytes:
    """Return a text without its byte order mark."""
    return body.removeprefix(b"\xef\xbb\xbf") if isinstance(body, bytes) else body.removeprefix("\ufeff")


def _may_repeat_names(text: str | bytes, value: object) -> bool:
    """Return whether a name can be there twice. Each name has a colon, and the value that was read has each name once."""
    colons = text.count(b":") if isinstance(text, bytes) else text.count(":")
    if type(value) is dict and len(value) == colons:
        return False  # it is flat, and no text in it has a colon
    try:
        if _ENCODE(value).count(b":") != colons:
            return True
    except (ValueError, TypeError, OverflowError, RecursionError):  # such as a number that only fits into Python's
        return True
    return b"\\u003" in text if isinstance(text, bytes) else "\\u003" in text  # an escaped colon would hide one


def _fault(text: str | bytes, error: Exception) -> NotJson:
    """Return why a text is no JSON, or not all readers' JSON."""
    what, almost = str(error).removeprefix("JSON is malformed: "), True
    try:
        _read_leniently(text if isinstance(text, str) else text.decode())
    except UnicodeDecodeError:
        what = "it is not UTF-8"
    except (ValueError, RecursionError):
        almost = False
    if isinstance(error, RecursionError):
        what = "it is nested too deep"
    elif not text.strip():
        what = "it is empty"
    return NotJson(what, almost=almost, looks=text.lstrip()[:1] in _BEGINS)


def _read_leniently(text: str | bytes, made: Callable[[list[tuple[str, object]]], object] | None = None) -> None:
    from json import loads

    loads(text, object_pairs_hook=made)


def _unique(fields: list[tuple[str, object]]) -> None:
    names: set[str] = set()
    for name, _ in fields:
        if name in names:
            raise ValueError(f"the name {name[:40]!a} is there twice")
        names.add(name)
