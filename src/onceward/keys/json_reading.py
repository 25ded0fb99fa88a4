"""Reads JSON that others have sent: one rule for bytes that are not quite JSON.

A byte order mark is skipped. Refused are, each with its name and its byte: a name that is there twice, NaN and Infinity, half of a
surrogate pair, what is not UTF-8, and an empty text. RFC 8259 leaves them to each reader, so two readers could see two messages.

msgspec reads first. The slow look at each token is only for what it has refused, or what may have a name twice.
"""

import re
from collections.abc import Callable
from math import isinf
from typing import Final

import msgspec

_DECODE: Final[Callable[[str | bytes], object]] = msgspec.json.Decoder().decode
_ENCODE: Final = msgspec.json.Encoder().encode
_BOM: Final = b"\xef\xbb\xbf"
_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:,]|[^\s"{}\[\]:,]+', re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_BYTE: Final = re.compile(r"JSON is malformed: (.*) \(byte (\d+)\)")
_HUGE: Final = re.compile(r"-?\d+(?:\.\d+)?[eE]\+?\d+")
_CONSTANTS: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_BEGINS: Final = ("{", "[", '"')
_SUSPECT: Final = re.compile(
    r"[\ud800-\udfff]|\\u[dD][89a-fA-F]|NaN|Infinity|[eE]\+?\d\d\d"
)  # what msgspec does not name
_OTHERS: Final = (
    (b"\x1f\x8b", "compressed with gzip"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"\x28\xb5\x2f\xfd", "compressed with Zstandard"),
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
_NAME_SHOWN: Final = 40  # characters of a name in an error


class NotJson(ValueError):
    """A text is no JSON. It says why, and at which byte.

    Attributes:
        almost: whether other readers may take it for JSON.
        looks: whether it begins like JSON.
    """

    def __init__(self, what: str, byte: int | None = None, *, almost: bool = True, looks: bool = True) -> None:
        super().__init__(f"not JSON: {what}" if byte is None else f"not JSON: {what} at byte {byte}")
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
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ArithmeticError) as error:
        raise _refusal(body, error) from error
    if _may_repeat_names(text, value) and (found := _first_fault(_text_of(text))) is not None:
        raise _refused(body, *found)
    return value


def without_mark(body: str | bytes) -> str | bytes:
    """Return a text without its byte order mark."""
    return body.removeprefix(_BOM) if isinstance(body, bytes) else body.removeprefix("\ufeff")


def kind_of(data: bytes) -> str | None:
    """Return what data is that begins like no text in UTF-8: compressed, or in another encoding. None if it may be one."""
    for magic, kind in _OTHERS:
        if data.startswith(magic):
            return kind
    zeros = [place for place, byte in enumerate(data[:4]) if not byte]
    if zeros in ([1, 3], [0, 2]):
        return "UTF-16"
    return "UTF-32" if zeros in ([1, 2, 3], [0, 1, 2]) else None


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


def _text_of(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode()


def _refusal(body: str | bytes, error: Exception) -> NotJson:
    """Return why a text is no JSON, which msgspec has refused."""
    if isinstance(body, bytes) and (kind := kind_of(body)) is not None:
        return NotJson(f"it is {kind}", looks=False)
    text, mark = without_mark(body), len(body) - len(without_mark(body))
    try:
        read = _text_of(text)
    except UnicodeDecodeError as wrong:
        looks = text[: wrong.start].lstrip()[:1] in {b"{", b"[", b'"'}
        return NotJson("what is not UTF-8", mark + wrong.start, looks=looks)
    if not read.strip():
        return NotJson("it is empty", almost=False, looks=False)
    looks = read.lstrip().startswith(_BEGINS)
    told = _BYTE.search(str(error))
    found = _first_fault(read) if _SUSPECT.search(read) else None
    if found is not None and (told is None or len(read[: found[1]].encode("utf-8", "surrogatepass")) <= int(told[2])):
        return _refused(body, *found)
    if isinstance(error, RecursionError):
        return NotJson("it is nested too deep", almost=False, looks=looks)
    if told is None:
        what = "it ends too early" if "truncated" in str(error) else str(error)
        return NotJson(what, almost=False, looks=looks)
    return NotJson(told[1], (3 if mark else 0) + int(told[2]), almost=False, looks=looks)


def _refused(body: str | bytes, what: str, place: int) -> NotJson:
    text = without_mark(body)
    before = _text_of(text)[:place].encode("utf-8", "surrogatepass")
    looks = _text_of(text).lstrip().startswith(_BEGINS)
    return NotJson(what, len(before) + (3 if len(text) < len(body) else 0), looks=looks)


def _first_fault(text: str) -> tuple[str, int] | None:
    """Return the first thing about which readers of JSON do not agree, and its place; None if there is none."""
    names: list[set[str] | None] = []
    last = None
    for token in _TOKEN.finditer(text):
        part = token[0]
        first = part[0]
        if first == '"':
            if (half := _half_pair(part)) is not None:
                return "half of a surrogate pair", token.start() + half
            last = token
        elif first == "{":
            names.append(set())
        elif first == "[":
            names.append(None)
        elif first in "}]":
            if names:
                names.pop()
        elif first == ":":
            if last is not None and names and (seen := names[-1]) is not None:
                name = _read_name(last[0])
                if name in seen:
                    return f"the name {_shown(name)} is there twice", last.start()
                seen.add(name)
        elif (what := _strange_word(part)) is not None:
            return what, token.start()
    return None


def _strange_word(word: str) -> str | None:
    if word in _CONSTANTS:
        return word
    return "a number that is out of range" if _HUGE.fullmatch(word) and isinf(float(word)) else None


def _half_pair(string: str) -> int | None:
    """Return the place of half of a surrogate pair in a string of JSON with its quotes; None if there is none."""
    if (raw := _SURROGATE.search(string)) is not None:
        return raw.start()
    if "\\u" not in string:
        return None
    high = None
    for escape in _ESCAPE.finditer(string):
        if high is not None and escape.start() != high.end():
            return high.start()
        code = int(escape[1], 16) if escape[1] else 0
        is_low = 0xDC00 <= code < 0xE000
        if is_low is not (high is not None):
            return escape.start() if high is None else high.start()
        high = escape if 0xD800 <= code < 0xDC00 else None
    return None if high is None else high.start()


def _read_name(string: str) -> str:
    try:
        return msgspec.json.decode(string, type=str)
    except msgspec.MsgspecError:
        return string


def _shown(name: str) -> str:
    return ascii(name if len(name) <= _NAME_SHOWN else f"{name[:_NAME_SHOWN]}…")
