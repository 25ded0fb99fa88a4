"""Finding the records of a chain in a Redis ledger (:data:`onceward.stores.capabilities.TRACE`)."""

from typing import TYPE_CHECKING

from onceward.core.drivers import Steps
from onceward.stores.contract import Page
from onceward.stores.redis.finding import merged, page_calls
from onceward.stores.redis.names import encoded
from onceward.stores.redis.requests import RoundTrip

if TYPE_CHECKING:
    from onceward.stores.redis.store import RedisStore


def trace(store: "RedisStore", root: str, after: str | None, limit: int, scan: bool) -> Steps[Page]:  # noqa: ARG001 - an index finds them
    """Read one page of the records whose chain began at ``root``, in the order of their keys."""
    calls = page_calls(store.names, "origins", "", after, limit, encoded(root) + b"\0")
    return merged((yield RoundTrip("trace", calls)), limit)
