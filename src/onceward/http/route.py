"""Which requests carry a key and where, and what the rules decide on a request."""

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Final, NamedTuple

from onceward.core.arguments import check_flag
from onceward.core.policy import Options
from onceward.core.writes import UNKNOWN, Provenance
from onceward.http.answer import TOKEN
from onceward.http.body import key_reader
from onceward.http.request import Request

if TYPE_CHECKING:
    from onceward.observe.spans import Comes


HEADER: Final = "Idempotency-Key"
_LONG: Final = 1 << 14  # bytes; a longer body takes up to 4 ms to read
_BODY: Final = "body"  # what a key's path begins with

# Other routers' syntax, and text that never is in a request's path. A route with these would protect nothing.
_FOREIGN: Final = re.compile(r"<[^/]*>|\{[^/{}]*:path\}|%[0-9A-Fa-f]{2}|[?#]").search


class Route:
    """Requests that carry a key.

    Args:
        path: a path. ``{name}`` is one part, and a ``*`` at the end is all that follows, as in ``/orders/{id}/refunds`` and
            ``/v1/*``. Repeated and trailing slashes make no difference.
        methods: the methods, without HEAD. The default ones are not idempotent (RFC 9110, section 9.2.2).
        required: refuse a request without a key. If False, it passes unprotected.
        key: the name of the header with the key, or a JMESPath that begins with ``body``, as in ``body.payment.id``.

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
        methods = methods if isinstance(methods, str) else frozenset(methods)  # an iterator gives them once
        _check_methods(methods)
        check_flag("required", required)
        self.path = path
        self.methods = frozenset(method.upper() for method in methods)
        self.required = required
        self.key = key
        # A header's name may contain points, but no known one does.
        self.read = None if TOKEN(key) and "." not in key and key != _BODY else key_reader(key)
        self.header = key.lower()
        self.matches = _pattern(path).fullmatch


def _check_methods(methods: Collection[str]) -> None:
    if isinstance(methods, str) or not methods:
        raise TypeError(f"methods={methods!r}: give a list of them, as in methods=['POST']")
    for method in methods:
        if (
            not TOKEN(method) or method.upper() == "HEAD"
        ):  # a replay would have another Content-Length (RFC 9110, section 9.3.2)
            raise ValueError(f"methods={methods!r}: {method!r} is not a method to guard (RFC 9110, section 9.1)")


def _pattern(path: str) -> re.Pattern[str]:
    whole, star, rest = path.partition("*")
    if rest or not (whole.startswith("/") or path == "*"):
        raise ValueError(f"path={path!r}: begin it with a slash, and put a * at its end only, as in '/orders/*'")
    if (match := _FOREIGN(path)) is not None:
        raise ValueError(
            f"path={path!r}: {match[0]} is never in the path that a route is compared with. Write {{name}} for one part, and a * "
            "at the end for several. Write other characters as they are, without percent signs, and no query"
        )
    parts = re.split(r"(\{[^/{}]*\})", whole if star else whole.rstrip("/"))
    if any("{" in part or "}" in part for part in parts[::2]):
        raise ValueError(f"path={path!r}: a part in braces stands for a whole part of the path, as in '/orders/{{id}}'")
    pattern = "".join("[^/]+" if i % 2 else re.escape(part).replace("/", "/+") for i, part in enumerate(parts))
    # Litestar accepts several slashes as one, Starlette ignores a line break at the end. Neither may bypass the guard.
    return re.compile(pattern + (".*" if star else "/*\n?"), re.DOTALL)


class WebOptions(Options, total=False):
    """The keywords of a web guard: those of :class:`onceward.Policy`, of which ``cache`` has no effect here, and two more.

    Attributes:
        name: the namespace of the keys; each service on the ledger needs its own. It is required unless the Once has one.
        wait: seconds a request waits for the answer to an earlier one; without it, it gets a 409 at once.
    """

    name: str | None
    wait: float | None


class PendingRequest(NamedTuple):
    """A request that may carry a key. Read its body next: at most ``Rules.max_request`` bytes."""

    request: Request
    route: Route
    key: str | None
    scope: object
    codings: list[str]  # the lines of Content-Encoding

    def is_long(self, body: bytes) -> bool:
        """Return whether a body may take so long to read that an event loop must use a thread."""
        return len(body) > _LONG or bool(self.codings)


class KeyedRequest(NamedTuple):
    """What a request asks the guard for."""

    key: tuple[object, ...]  # the client's key, the path if the key is in a body, and the scope: for scoped_key()
    fingerprint: str  # the SHA-256 of what must not change under that key
    route: str  # method and path pattern, for metrics
    comes: "Comes | None" = None  # tells what the request came with, for traces
    provenance: Provenance = UNKNOWN  # where the request comes from, for the claim
