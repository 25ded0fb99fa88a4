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
# The part of a string in which no half of a surrogate pair is.
_PAIRED: Final = re.compile(
    r"(?:[^\\\ud800-\udfff]"
    r"|\\(?!u[dD][89a-fA-F][0-9a-fA-F]{2})."
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*+",
    re.DOTALL,
)
_BYTE: Final = re.compile(r"JSON is malformed: (.*) \(byte (\d+)\)")
_HUGE: Final = re.compile(r"-?\d+(?:\.\d+)?[eE]\+?\d+")
_CONSTANTS: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_BEGINS: Final = frozenset({"{", "[", '"', b"{", b"[", b'"'})
_SUSPECT: Final = re.compile(
    r"[\ud800-\udfff]|\\u[dD][89a-fA-F]|NaN|Infinity|[eE]\+?\d\d\d"
)  # what msgspec does not name
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
    text, error = without_mark(body), None
    try:
        value = decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ArithmeticError) as caught:
        error = caught
    if error is not None or _may_repeat_names(text, value):
        fault = _fault(body, error)
        if fault is not None:
            raise fault from error
    return value


def without_mark(body: str | bytes) -> str | bytes:
    """Return a text without its byte order mark."""
    return body.removeprefix(_BOM) if isinstance(body, bytes) else body.removeprefix("\ufeff")


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


def _fault(body: str | bytes, error: Exception | None) -> NotJson | None:
    """Return why a text is no JSON. ``error`` is why msgspec has refused it; if it is None, the text may be right."""
    text = without_mark(body)
    mark, looks = 3 * (len(text) < len(body)), text.lstrip()[:1] in _BEGINS
    try:
        read = text if isinstance(text, str) else text.decode()
    except UnicodeDecodeError as wrong:
        return NotJson("what is not UTF-8", mark + wrong.start, looks=looks)
    match = _BYTE.search(str(error))
    if (error is None or _SUSPECT.search(read)) and (fault := _first_fault(read)) is not None:
        byte = len(read[: fault[1]].encode("utf-8", "surrogatepass"))
        if match is None or byte <= int(match[2]):
            return NotJson(fault[0], mark + byte, looks=looks)
    if error is None:
        return None
    what, place = str(error), None
    if not read.strip():
        what = "it is empty"
    elif isinstance(error, RecursionError):
        what = "it is nested too deep"
    elif match is not None:
        what, place = match[1], mark + int(match[2])
    elif "truncated" in what:
        what = "it ends too early"
    return NotJson(what, place, almost=False, looks=looks)


def _first_fault(text: str) -> tuple[str, int] | None:
    """Return the first thing about which readers of JSON do not agree, and its place; None if there is none."""
    names: list[set[str] | None] = []
    last = None
    for token in _TOKEN.finditer(text):
        part = token[0]
        first = part[0]
        if first == '"':
            if (paired := _PAIRED.match(part)) is not None and paired.end() < len(part):
                return "half of a surrogate pair", token.start() + paired.end()
            last = token
        elif first in "{[":
            names.append(set() if first == "{" else None)
        elif first in "}]":
            del names[-1:]
        elif first == ":":
            if last is not None and names and (seen := names[-1]) is not None:
                name = _read_name(last[0])
                if name in seen:
                    return f"the name {_show(name)} is there twice", last.start()
                seen.add(name)
        elif part in _CONSTANTS:
            return part, token.start()
        elif _HUGE.fullmatch(part) and isinf(float(part)):
            return "a number that is out of range", token.start()
    return None


def _read_name(string: str) -> str:
    try:
        return msgspec.json.decode(string, type=str)
    except msgspec.MsgspecError:
        return string


def _show(name: str) -> str:
    return ascii(name if len(name) <= _NAME_SHOWN else f"{name[:_NAME_SHOWN]}…")
