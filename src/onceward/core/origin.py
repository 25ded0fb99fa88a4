"""Where a call came from: the keys of the handlers whose messages led to it, as a message's headers carry them."""

import datetime as dt  # noqa: F401 - before msgspec: its C code drops an interrupt of this import, and then crashes
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from onceward.core.writes import UNKNOWN, Provenance

ROOT: Final = "onceward-root"
PARENT: Final = "onceward-parent"
ENCODED: Final = frozenset({ROOT, PARENT})  # percent-encoded in HTTP, whose headers are ASCII
_LONGEST: Final = 1024  # characters of a key in a header: longer than any of ours
_SAFE: Final = "".join(map(chr, range(33, 127))).replace("%", "")
_CONTROLS: Final = {*range(32), *range(127, 160)}


class CallOrigin(NamedTuple):
    """The keys in the ledger that a call came from.

    Attributes:
        root: where the chain of messages began.
        parent: whose handler sent the message.
    """

    root: str
    parent: str


def provenance_in(header: Callable[[str], object]) -> Provenance:
    """Return where a message comes from, for the claim of its key. Most messages come from no handler.

    Whoever sent the message wrote its headers, so what cannot be keys is ignored.

    Args:
        header: returns the value of a header, or None.
    """
    parent = header(PARENT)
    if parent is None or not _is_key(parent):
        return UNKNOWN
    root = header(ROOT)
    origin = {"root": root if _is_key(root) else parent, "parent": parent}
    return Provenance(origin=msgspec.json.encode(origin).decode())


def beginning(root: str) -> str:
    """Return what each ``origin`` with this root begins with, and no other."""
    return f'{{"root":{msgspec.json.encode(root).decode()},'


def headers_for(key: str, origin: str | None) -> dict[str, str]:
    """Return the headers of a message that the handler of ``key`` sends, whose own record has this ``origin``."""
    came = read_origin(origin)
    return {ROOT: key if came is None else came.root, PARENT: key}


def read_origin(text: str | None) -> CallOrigin | None:
    """Return a record's ``origin``; None if it has none, or somebody has damaged it."""
    if text is None:
        return None
    try:
        fields = msgspec.json.decode(text, type=dict[str, str])
        return CallOrigin(fields["root"], fields["parent"])
    except (msgspec.MsgspecError, KeyError, ValueError):
        return None


def encoded(key: str) -> str:
    """Return a key as an HTTP header has it (RFC 3986, section 2.1)."""
    from urllib.parse import quote

    return quote(key, safe=_SAFE)


def decoded(value: str) -> str:
    """Return the key that :func:`encoded` has encoded."""
    from urllib.parse import unquote

    return unquote(value)


def _is_key(text: object) -> bool:
    return isinstance(text, str) and 0 < len(text) <= _LONGEST and _CONTROLS.isdisjoint(map(ord, text))
