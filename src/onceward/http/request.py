"""A request as the rules see it, whatever the host."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

_SLASHES: Final = re.compile("//+").sub
_NOTHING: Mapping[str, object] = {}


class Request:
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
        """The path with its root, alike for paths that routes cover alike: slashes that are repeated or at the end do not count."""
        path = self.root + self.path
        if path.endswith("/") or "//" in path:
            return _SLASHES("/", path).rstrip("/") or "/"
        return path or "/"

    def lines(self, name: str) -> list[str]:
        """Return the values of all lines of a header.

        Args:
            name: in lower case.
        """
        return [value for held, value in self.headers if held == name]

    def cookie(self, name: str) -> str | None:
        """Return the value of a cookie (RFC 6265, section 5.4), or None.

        A cookie may be sent with several values. Frameworks take the first or the last of them, so here it is all of them,
        with semicolons between.
        """
        values: dict[str, None] = {}
        for line in self.lines("cookie"):
            for pair in line.split(";"):
                key, equals, value = pair.partition("=")
                if equals and key.strip() == name:
                    values[value.strip()] = None
        return ";".join(values) if values else None


def rooted(path: str) -> str:
    """Return a path from its slash on, as routers read one that begins otherwise.

    A client may send a whole URL (RFC 9112, section 3.2.2) or leave out the slash, and some servers pass that on.
    """
    if path.startswith("/"):
        return path
    _, scheme, rest = path.partition("://")
    return "/" + (rest.partition("/")[2] if scheme else path)
