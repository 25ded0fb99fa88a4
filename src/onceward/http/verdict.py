"""What the rules make of a request that they cover: it waits for its body, passes unguarded, or asks for a key."""

from typing import NamedTuple, Self

from onceward.http.request import Request
from onceward.http.route import Route
from onceward.observe.logs import logger


class PendingRequest(NamedTuple):
    """A request that may carry a key; its body is wanted next, of ``Rules.max_request`` bytes at most."""

    request: Request
    route: Route
    key: str | None
    scope: object


class PassedRequest(NamedTuple):
    """A request that its scope lets pass to the application, unguarded: the application must answer it with 4xx.

    As a context it is put around the application, for what that raises is no such answer.
    """

    route: str

    def answered(self, status: int) -> None:
        """Take in the application's answer; one that is not 4xx is logged as an error."""
        if not 400 <= status < 500:
            logger().error(
                "%s: a request without a caller passed to the application (Scope.PASS), which answered %d instead of 4xx: it ran "
                "unguarded. Have the application refuse such requests, or leave out .or_pass()",
                self.route,
                status,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, Exception):
            self.answered(500)


class KeyedRequest(NamedTuple):
    """What a request asks the guard for.

    Attributes:
        key: the client's key, the path when the key stands in a body, and the scope, for :func:`onceward.keys.ledger_keys.scoped_key`.
        fingerprint: the SHA-256 of what must not change under that key.
        route: method and path pattern, for metrics.
    """

    key: tuple[object, ...]
    fingerprint: str
    route: str
