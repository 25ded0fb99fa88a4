"""Which requests carry a key, and where."""

import re
from collections.abc import Callable, Collection
from typing import Final, cast

from onceward.claim.arguments import check_flag
from onceward.http.body import key_reader

HEADER: Final = "Idempotency-Key"
_BODY: Final = "body"  # what a key's path begins with
TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+").fullmatch  # RFC 9110, section 5.6.2

# How other routers write parts, and what is no longer there in a path: such a route would protect nothing.
_FOREIGN: Final = re.compile(r"<[^/]*>|\{[^/{}]*:path\}|%[0-9A-Fa-f]{2}|[?#]").search


class Route:
    """Requests that carry a key.

    Args:
        path: a path, in which ``{name}`` stands for one part, and a ``*`` at the end for all that follows, as in
            ``/orders/{id}/refunds`` and ``/v1/*``. Slashes that are repeated or at the end make no difference.
        methods: the methods. By default those that are not idempotent by themselves (RFC 9110, section 9.2.2).
        required: whether a request without a key is refused; otherwise it is let through, unprotected.
        key: the name of the header with the key, or a JMESPath that begins with ``body``, the JSON of the request, as in
            ``body.payment.id``.

    Raises:
        ValueError, TypeError: an argument is not valid.
    """

    def __init__(
        self,
        path: str = "*",
        *,
        methods: Collection[str] = ("POST", "PATCH"),
        required: bool = True,
        key: str = HEADER,
    ) -> None:
        if not isinstance(path, str):
            raise TypeError(f"path={path!r}: give a path, as in Route('/orders')")
        _check_methods(methods)
        check_flag("required", required)
        if not isinstance(key, str):
            raise TypeError(f"key={key!r}: give the name of a header, or a JMESPath, as in 'body.payment.id'")
        self.path = path
        self.methods = frozenset(method.upper() for method in methods)
        self.required = required
        self.key = key
        self.read = None if _is_header(key) else _reader(key)
        self.header = key.lower()
        self._matches = _pattern(path).fullmatch

    def covers(self, method: str, path: str) -> bool:
        """Tell whether a request of that method for that path is one of these."""
        return method in self.methods and self._matches(path) is not None

    def __repr__(self) -> str:
        return f"Route({self.path!r}, methods={sorted(self.methods)!r}, required={self.required!r}, key={self.key!r})"


def _is_header(key: str) -> bool:
    # A header's name may have points, and none has.
    return TOKEN(key) is not None and "." not in key and key != _BODY


def _reader(key: str) -> Callable[[bytes], object]:
    try:
        return key_reader(key)
    except ValueError as error:
        raise ValueError(f"{error}. Give the name of a header, or a JMESPath, as in 'body.payment.id'") from error


def _check_methods(methods: object) -> None:
    if isinstance(methods, str | bytes) or not isinstance(methods, Collection) or not methods:
        raise TypeError(f"methods={methods!r}: give a list of them, as in methods=['POST']")
    for method in cast("Collection[object]", methods):
        if not isinstance(method, str):
            raise TypeError(f"methods={methods!r}: {method!r} is no method; give them as in methods=['POST']")
        if not TOKEN(method):
            raise ValueError(f"methods={methods!r}: {method!r} is no method (RFC 9110, section 9.1)")


def _pattern(path: str) -> re.Pattern[str]:
    whole, star, rest = path.partition("*")
    if rest or not (whole.startswith("/") or path == "*"):
        raise ValueError(f"path={path!r}: begin it with a slash, and put a * at its end only, as in '/orders/*'")
    if (found := _FOREIGN(path)) is not None:
        raise ValueError(
            f"path={path!r}: {found[0]} is not what a request's path is compared with. Write {{name}} for one part, a * at the end "
            "for several, other characters as they are without percent signs, and nothing of the query"
        )
    parts = re.split(r"(\{[^/{}]*\})", whole if star else whole.rstrip("/"))
    if any("{" in part or "}" in part for part in parts[::2]):
        raise ValueError(f"path={path!r}: a part in braces stands for a whole part of the path, as in '/orders/{{id}}'")
    written = "".join("[^/]+" if i % 2 else re.escape(part).replace("/", "/+") for i, part in enumerate(parts))
    # Litestar takes several slashes for one, Starlette does without a line break at the end: neither is to go round the guard.
    return re.compile(written + (".*" if star else "/*\n?"), re.DOTALL)
