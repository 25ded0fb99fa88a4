"""Reads the key from its header: an Item of RFC 9651 (which replaces RFC 8941) that is a String.

draft-ietf-httpapi-idempotency-key-header-07, section 2.1: "Idempotency-Key is an Item Structured Header. Its value MUST be a
String." Most clients send the value without quotes, so this is read, too, if it is unambiguous.
"""

import re
from collections.abc import Sequence
from typing import Final

from onceward.http.request import BadRequest

# RFC 9651, section 3: an Item may have parameters. The draft defines none, and readers ignore unknown ones.
_STRING: Final = r'"(?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*"'
_BARE_ITEM: Final = "|".join(
    [
        r"-?[0-9]{1,12}\.[0-9]{1,3}",  # Decimal
        r"@?-?[0-9]{1,15}",  # Integer, Date
        _STRING,
        r"[A-Za-z*][!#$%&'*+\-.^_`|~0-9A-Za-z:/]*",  # Token
        r":[A-Za-z0-9+/=]*:",  # Byte Sequence
        r"\?[01]",  # Boolean
        r'%"(?:[\x20-\x21\x23-\x24\x26-\x7e]|%[0-9a-f]{2})*"',  # Display String
    ]
)
_PARAMETER: Final = rf"; *[a-z*][a-z0-9_\-.*]*(?:=(?:{_BARE_ITEM}))?"
_ITEM: Final = re.compile(rf" *({_STRING})(?:{_PARAMETER})* *").fullmatch
# Visible ASCII without the characters that mean something: a comma joins header lines (RFC 9110, section 5.3), a semicolon
# begins a parameter, quotes and backslashes belong to a String.
_BARE: Final = re.compile(r"[ \t]*([\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]+)[ \t]*").fullmatch
_ESCAPED: Final = re.compile(r'\\(["\\])').sub


def read_key(lines: Sequence[str], *, strict: bool = False, least: int = 1, most: int = 255) -> str:
    """Return the key of a header.

    Args:
        lines: the values of the header's lines; at least one.
        strict: refuse a value without quotes.
        least: the fewest characters of a key.
        most: the most characters of a key.

    Returns:
        The key without quotes: ``"abc"`` and ``abc`` are the same key.

    Raises:
        BadRequest: there are several lines, the value is not a String, or its length is out of bounds.
    """
    if len(lines) > 1:
        raise BadRequest(f"the header was sent {len(lines)} times; send it once")
    found = _ITEM(lines[0])
    if found is not None:
        key = _ESCAPED(r"\1", found[1][1:-1])
    elif not strict and (bare := _BARE(lines[0])) is not None:
        key = bare[1]
    else:
        raise BadRequest('its value is not a string in quotes, as in "8e03978e-40d5-43e8-bc93-6894a57f9324"')
    if not key.strip():
        raise BadRequest("it is empty")
    if not least <= len(key) <= most:
        raise BadRequest(f"it has {len(key)} characters; {least} to {most} are allowed")
    return key
