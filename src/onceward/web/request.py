"""A request as the rules see it, whatever the host."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

_SLASHES: Final = re.compile("//+").sub
_NOTHING: Mapping[str, object] = {}


class Request(NamedTuple):
    """A request without its body.

    Attributes:
        method: in capitals, such as POST.
        path: from its slash on, without the query; what routes are matched with.
        query: what follows the ``?``, as it was sent, or an equal text for an equal query.
        headers: one pair for each header line, the names in lower case.
        identity: who the host has found the caller to be, when it authenticates callers itself; None when it does not.
        native: the request as the host gave it, for a ``scope`` that needs more than is here: an event's dict, an ASGI scope,
            a WSGI environ.
        root: what stands before the path where the application is mounted (ASGI's root_path, WSGI's SCRIPT_NAME). Routes are
            written without it; keys and fingerprints tell one mounted application from another by it.
    """

    method: str
    path: str
    query: str = ""
    headers: Sequence[tuple[str, str]] = ()
    identity: str | None = None
    native: Mapping[str, object] = _NOTHING
    root: str = ""

    @property
    def place(self) -> str:
        """The path with its root, alike for paths that routes cover alike: slashes that are repeated or at the end do not count."""
        return _SLASHES("/", self.root + self.path).rstrip("/") or "/"

    def lines(self, name: str) -> list[str]:
        """Return the values of all lines of a header.

        Args:
            name: in lower case.
        """
        return [value for held, value in self.headers if held == name]

    def cookie(self, name: str) -> str | None:
        """Return the value of a cookie (RFC 6265, section 5.4), or None."""
        for line in self.lines("cookie"):
            for pair in line.split(";"):
                key, equals, value = pair.strip().partition("=")
                if equals and key == name:
                    return value
        return None
