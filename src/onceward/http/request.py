"""A request as the rules see it, whatever the host, and the key in its header."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from onceward.core.origin import decoded, provenance_in
from onceward.core.writes import Provenance

if TYPE_CHECKING:
    from onceward.observe.spans import Incoming


_SLASHES: Final = re.compile("//+").sub
_NOTHING: Mapping[str, object] = {}


class BadRequest(ValueError):
    """A request's key or body cannot be read. The text tells the sender why."""


class Request:
    """A request without its body.

    Attributes:
        method: in capitals, such as POST.
        path: begins with a slash, without the query. Routes are matched with it.
        query: the text after the ``?``, as it was sent, or a text that is equal for equal queries.
        headers: one pair of name and value for each header line, with names in lower case.
        identity: the caller, if the host authenticates callers itself; else None.
        native: the host's own request, for a ``scope`` that needs more: an event's dict, an ASGI scope, a WSGI environ.
        root: the prefix where the application is mounted (ASGI's root_path, WSGI's SCRIPT_NAME). Routes do not contain it.
            Keys and fingerprints do, to tell mounted applications apart.
    """

    def __init__(
        self,
        method: str,
        path: str,
        query: str = "",
        headers: Sequence[tuple[str, str]] = (),
        identity: str | None = None,
        native: Mapping[str, object] = _NOTHING,
        root: str = "",
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.identity = identity
        self.native = native
        self.root = root

    @property
    def place(self) -> str:
        """The root and the path, without repeated and trailing slashes, which routes ignore, too."""
        path = self.root + self.path
        if path.endswith("/") or "//" in path:
            return _SLASHES("/", path).rstrip("/") or "/"
        return path or "/"

    def lines(self, name: str) -> list[str]:
        """Return the values of all lines of a header; its name is in lower case."""
        return [value for held, value in self.headers if held == name]

    def provenance(self) -> Provenance:
        """Return where a request comes from that the outbox has sent: it has the header :data:`PARENT`."""
        return provenance_in(lambda name: decoded("".join(self.lines(name)[:1])))

    def comes(self) -> "Incoming":
        """Return the headers of the request, for traces."""
        from onceward.observe.spans import Incoming  # only who makes spans asks

        return Incoming(lambda name: next(iter(self.lines(name.lower())), None))

    def cookie(self, name: str) -> str | None:
        """Return the value of a cookie (RFC 6265, section 5.4), or None.

        Frameworks differ on which of several values counts, so this returns all of them, with semicolons between.
        """
        values: dict[str, None] = {}
        for line in self.lines("cookie"):
            for pair in line.split(";"):
                key, equals, value = pair.partition("=")
                if equals and key.strip() == name:
                    values[value.strip()] = None
        return ";".join(values) if values else None


def with_slash(path: str) -> str:
    """Return a path that begins with a slash, as routers read it.

    A client may send a whole URL (RFC 9112, section 3.2.2) or no slash, and some servers pass that on.
    """
    if path.startswith("/"):
        return path
    _, scheme, rest = path.partition("://")
    return "/" + (rest.partition("/")[2] if scheme else path)


# RFC 9651, section 3: an Item may have parameters, after a semicolon. The draft defines none, and readers ignore unknown ones. A
# comma joins header lines (RFC 9110, section 5.3).
_ITEM: Final = re.compile(r' *("(?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*") *(?:;[^,]*)?').fullmatch
# Visible ASCII without the characters that mean something: a comma joins header lines (RFC 9110, section 5.3), a semicolon
# begins a parameter, quotes and backslashes belong to a String.
_BARE: Final = re.compile(r"[ \t]*([\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]+)[ \t]*").fullmatch
_ESCAPED: Final = re.compile(r'\\(["\\])').sub


def read_key(lines: Sequence[str], *, strict: bool = False, least: int = 1, most: int = 255) -> str:
    """Return the key of a header: an Item of RFC 9651 (which replaces RFC 8941) that is a String.

    draft-ietf-httpapi-idempotency-key-header-07, section 2.1, asks for that. Most clients send the value without quotes, so this is read,
    too, if it is unambiguous.

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
    match = _ITEM(lines[0])
    if match is not None:
        key = _ESCAPED(r"\1", match[1][1:-1])
    elif not strict and (bare := _BARE(lines[0])) is not None:
        key = bare[1]
    else:
        raise BadRequest('its value is not a string in quotes, as in "8e03978e-40d5-43e8-bc93-6894a57f9324"')
    if not key.strip():
        raise BadRequest("it is empty")
    if not least <= len(key) <= most:
        raise BadRequest(f"it has {len(key)} characters; {least} to {most} are allowed")
    return key
