"""What the rules decide on a request that they cover: it waits for its body, passes unguarded, or asks for a key."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Self

from onceward.core.writes import UNKNOWN, Provenance
from onceward.http.request import Request
from onceward.http.route import Route
from onceward.observe.logs import logger

if TYPE_CHECKING:
    from onceward.observe.spans import Comes


class PendingRequest(NamedTuple):
    """A request that may carry a key. Read its body next: at most ``Rules.max_request`` bytes."""

    request: Request
    route: Route
    key: str | None
    scope: object


class PassedRequest(NamedTuple):
    """A request that its scope passes to the application, unguarded. The application must answer it with 4xx.

    Use it as a context around the application: an exception is not such an answer, and is logged.
    """

    route: str

    def answered(self, status: int) -> None:
        """Log an error if the application's answer is not 4xx."""
        if not 400 <= status < 500:
            logger().error(
                "%s: a request without a caller passed to the application (Scope.PASS), which answered %d instead of 4xx. It ran "
                "unguarded. Make the application refuse such requests, or leave out .or_pass()",
                self.route,
                status,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, Exception):
            self.answered(500)


class KeyedRequest(NamedTuple):
    """What a request asks the guard for."""

    key: tuple[object, ...]  # the client's key, the path if the key is in a body, and the scope: for scoped_key()
    fingerprint: str  # the SHA-256 of what must not change under that key
    route: str  # method and path pattern, for metrics
    comes: "Comes | None" = None  # tells what the request came with, for traces
    provenance: Provenance = UNKNOWN  # where the request comes from, for the claim
    lines: "Callable[[str], list[str]]" = lambda _: []  # returns the lines of one of its headers
