"""What of a request's body must not change under one key, and the key that a body may carry.

JSON is compared by what it says: the order of members, white space, escapes and the way a number is written (1, 1.0, 1e0) do
not matter, and no number is rounded, so that two amounts never pass for one. A multipart body is compared without its
boundary, which many clients choose anew for each try. Every other body is compared byte by byte.
"""

import re
from collections.abc import Callable
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Inexact, InvalidOperation
from functools import cache, lru_cache
from hashlib import sha256
from typing import Final, cast

import msgspec

from onceward.http.request import Request
from onceward.keys.roots import fixed

_BODY: Final = fixed("body", "the JSON of the request")
_JSON: Final = re.compile(r"\s*application/(?:[\w.+\-]+\+)?json\s*(?:;|$)", re.IGNORECASE).match
_BOUNDARY: Final = re.compile(r'\s*multipart/.*;\s*boundary=(?:"([^"]+)"|([^\s;"]+))', re.IGNORECASE | re.DOTALL).match
_MOST_DIGITS: Final = 19  # of a number with a point or exponent that is written as a whole one
# Numbers that already stand in the one form that equal numbers share, as most do. This takes a fifth of a Decimal's time.
_PLAIN: Final = re.compile(r"-?(?:[1-9][0-9]*\.|0\.0{0,5}(?=[1-9]))[0-9]*[1-9]").fullmatch
LONG: Final = 1 << 14  # bytes; to look at a longer body takes up to 4 ms, so an event loop has a thread do it
# Raises, and never rounds.
_EXACT: Final = Context(MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact, InvalidOperation])


class BadBody(ValueError):
    """The body's key cannot be used; the text says to its sender why."""


def fingerprint(request: Request, body: bytes) -> str:
    """Return the SHA-256 of a request's method, path, query and body; equal for a request that is sent again.

    Also for one whose path had a slash too many, which frameworks answer with a redirect to the path without it.
    """
    kind, data = _canonical(request, body)
    head = f"{(request.method, request.place, request.query, kind)!a}\n"  # ASCII, and without a line break of its own
    return sha256(head.encode() + data).hexdigest()


def is_json(request: Request) -> bool:
    """Tell whether the request says that its body is JSON (RFC 8259), or of a type built on it (RFC 6839, section 3.1)."""
    return any(map(_is_json, request.lines("content-type")))


@lru_cache(32)
def _is_json(content_type: str) -> bool:
    return _JSON(content_type) is not None


def key_reader(expression: str) -> Callable[[bytes], object]:
    """Return what reads the key from a JSON body.

    Args:
        expression: a JMESPath that begins with ``body``.

    Returns:
        A function from the body to the key: a str, an int or a list of them, or None when the body has not got it, or is not
        JSON. It raises BadBody for a key of another kind, and KeyMissing for one of which a part is missing.

    Raises:
        ValueError: the expression is not valid, or not fit for a key.
    """
    from onceward.keys.paths import StrictPath

    path = StrictPath(expression, "key", _BODY)

    def read(body: bytes) -> object:
        try:
            document = msgspec.json.decode(body)
        except (msgspec.MsgspecError, RecursionError):
            return None
        key = path.search({"body": document})
        if key is None:
            return None
        parts = cast("list[object]", key) if type(key) is list else [key]
        if not parts or any(type(part) not in {str, int} or not str(part).strip() for part in parts):
            raise BadBody("it is empty, or not a string or a whole number")
        return key

    return read


def _canonical(request: Request, body: bytes) -> tuple[str, bytes]:
    if body and is_json(request):
        decode, encode = _json()
        try:
            return "json", encode(decode(body))
        except (msgspec.MsgspecError, RecursionError, ArithmeticError):
            return "bytes", body  # not JSON after all, or none that can be told exactly: compared as it is
    for line in request.lines("content-type"):
        if (found := _BOUNDARY(line)) is not None:
            boundary = (found[1] or found[2]).encode("latin-1", "replace")
            return "multipart", body.replace(b"--" + boundary, b"--")
    return "bytes", body


@cache
def _json() -> tuple[Callable[[bytes], object], Callable[[object], bytes]]:
    """Return what reads JSON without rounding, and what writes equal documents alike (in the manner of RFC 8785)."""
    decoder: msgspec.json.Decoder[object] = msgspec.json.Decoder(float_hook=_number)
    return decoder.decode, msgspec.json.Encoder(order="deterministic", decimal_format="number").encode


def _number(text: str) -> object:
    """Return a number with a point or exponent in the one form that equal numbers share."""
    if _PLAIN(text) is not None:
        return msgspec.Raw(text)
    number = _EXACT.create_decimal(text).normalize(_EXACT)
    if not number:
        return 0  # also for -0.0
    if 0 <= number.adjusted() < _MOST_DIGITS and (whole := int(number)) == number:
        return whole
    return number
