"""A request as the rules see it, whatever the host."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from onceward.core.origin import PARENT, decoded, provenance_in
from onceward.core.writes import UNKNOWN, Provenance

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
        query: what follows the ``?``, as it was sent, or an equal text for an equal query.
        headers: one pair for each header line, the names in lower case.
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
        """Return where the request comes from, if the outbox has sent it."""
        return provenance_in(self._key) if self.lines(PARENT) else UNKNOWN

    def _key(self, name: str) -> str | None:
        """Return the key that a header of ours holds."""
        lines = self.lines(name)
        return decoded(lines[0]) if lines else None

    def comes(self) -> "Incoming":
        """Return what the handler's call came with, for traces."""
        from onceward.observe.spans import Incoming  # only who makes spans asks

        return Incoming(lambda name: next(iter(self.lines(name.lower())), None))

    def cookie(self, name: str) -> str | None:
        """Return the value of a cookie (RFC 6265, section 5.4), or None.

        Frameworks differ on which of several values counts, so all of them are returned, with semicolons between.
        """
        values: dict[str, None] = {}
        for line in self.lines("cookie"):
            for pair in line.split(";"):
                key, equals, value = pair.partition("=")
                if equals and key.strip() == name:
                    values[value.strip()] = None
        return ";".join(values) if values else None


def rooted(path: str) -> str:
    """Return a path that begins with a slash, as routers read it.

    A client may send a whole URL (RFC 9112, section 3.2.2) or no slash, and some servers pass that on.
    """
    if path.startswith("/"):
        return path
    _, scheme, rest = path.partition("://")
    return "/" + (rest.partition("/")[2] if scheme else path)
