"""The fingerprint of a request's body, which must not change under one key, and the key that a body may carry.

JSON is compared by content: member order, white space, escapes and number notation (1, 1.0, 1e0) do not matter. No number is
rounded, so two amounts are never taken for one. A multipart body is compared without its boundary, because many clients
change it for each try. Every other body is compared byte by byte. A body in gzip or deflate is decoded first (``answer.py``).
"""

import re
from collections.abc import Callable
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Inexact, InvalidOperation
from functools import lru_cache
from hashlib import sha256
from typing import Final, cast

import msgspec

from onceward.core.arguments import check_hook
from onceward.http.request import BadRequest, Request
from onceward.keys.json_reading import NotJson, read_json
from onceward.keys.ledger_keys import fingerprint_of
from onceward.keys.paths import StrictPath, fixed

_BODY: Final = fixed("body", "the JSON of the request")
_JSON: Final = re.compile(r"\s*application/(?:[\w.+\-]+\+)?json\s*(?:;|$)", re.IGNORECASE).match
_BOUNDARY: Final = re.compile(r'\s*multipart/.*;\s*boundary=(?:"([^"]+)"|([^\s;"]+))', re.IGNORECASE | re.DOTALL).match
_MOST_DIGITS: Final = 19  # of a number with a point or exponent that is written as a whole number
# Most numbers are already in canonical form. This check takes a fifth of a Decimal's time.
_PLAIN: Final = re.compile(r"-?(?:[1-9][0-9]*\.|0\.0{0,5}(?=[1-9]))[0-9]*[1-9]").fullmatch
# Raises instead of rounding.
_EXACT: Final = Context(MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact, InvalidOperation])


def fingerprint(request: Request, body: bytes) -> str:
    """Return the SHA-256 of a request's method, path, query and body; equal for a request that is sent again.

    An extra slash in the path does not matter: frameworks redirect to the path without it.
    """
    kind, data, types = "bytes", body, request.lines("content-type")
    if body and any(map(_is_json, types)):
        try:
            kind, data = "json", _ENCODE(read_json(body, _DECODE))
        except NotJson:
            pass  # not JSON, or not exactly readable: compare the bytes
    elif (match := next(filter(None, map(_BOUNDARY, types)), None)) is not None:
        boundary = (match[1] or match[2]).encode("latin-1", "replace")
        kind, data = "multipart", body.replace(b"--" + boundary, b"--")
    head = f"{(request.method, request.place, request.query, kind)!a}\n"  # ASCII, without line breaks
    return sha256(head.encode() + data).hexdigest()


Fingerprint = Callable[[Request, bytes], object]


def fingerprinter(option: object) -> Callable[[Request, bytes], str]:
    """Return the function that makes the fingerprint of a request, for an option of ``Rules``."""
    if option == "all":
        return fingerprint
    choose = (lambda *_: "path") if option == "path" else option
    if not callable(choose):
        raise TypeError(
            f'fingerprint={option!r}: give "all", "path", or a callable that is given a request and its body'
        )
    check_hook("fingerprint", choose)
    return lambda request, body: fingerprint_of((request.method, request.place, choose(request, body)))


@lru_cache(32)
def _is_json(content_type: str) -> bool:
    """Return whether a type is JSON (RFC 8259) or built on it (RFC 6839, section 3.1)."""
    return _JSON(content_type) is not None


def key_reader(expression: str) -> Callable[[bytes], object]:
    """Return a function that reads the key from a JSON body.

    Args:
        expression: a JMESPath that begins with ``body``.

    Returns:
        A function from the body to the key: a str, an int or a list of them; None if the body has no key or is not JSON.
        It raises BadRequest for a key of another type and a body that is almost JSON, and KeyMissing if a part of the key is missing.

    Raises:
        ValueError: the expression is not valid, or cannot be a key.
    """
    path = StrictPath(expression, "key", _BODY)

    def read(body: bytes) -> object:
        try:
            document = read_json(body)
        except NotJson as error:
            if error.almost:  # the application may take it for JSON; then it must not run unguarded
                raise BadRequest(f"the payload is {error}") from error
            return None
        key = path.search({"body": document})
        if key is None:
            return None
        parts = cast("list[object]", key) if type(key) is list else [key]
        if not parts or any(type(part) not in {str, int} or not str(part).strip() for part in parts):
            raise BadRequest("it is empty, or not a string or a whole number")
        return key

    return read


def _number(text: str) -> object:
    """Return a number with a point or exponent in canonical form."""
    if _PLAIN(text) is not None:
        return msgspec.Raw(text)
    number = _EXACT.create_decimal(text).normalize(_EXACT)
    if not number:
        return 0  # also for -0.0
    if 0 <= number.adjusted() < _MOST_DIGITS and (whole := int(number)) == number:
        return whole
    return number


# The decoder never rounds, and the encoder writes equal documents alike (similar to RFC 8785).
_DECODE: Final[Callable[[str | bytes], object]] = msgspec.json.Decoder(object, float_hook=_number).decode
_ENCODE: Final = msgspec.json.Encoder(order="deterministic", decimal_format="number").encode
