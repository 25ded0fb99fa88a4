"""Reading pages of records: each shard gives the first ones, and they are merged in the order of their keys."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from onceward.core.comparisons import meets
from onceward.core.drivers import Steps
from onceward.core.record import IN_PROGRESS, PARKED, RELEASED
from onceward.core.views import Criteria
from onceward.stores.contract import Page
from onceward.stores.redis.names import SHARDS, RedisNames, encoded
from onceward.stores.redis.records import read
from onceward.stores.redis.requests import RoundTrip, ScriptCall
from onceward.stores.redis.scripts import PAGE

if TYPE_CHECKING:
    from onceward.stores.redis.store import RedisStore

UNFINISHED: Final = frozenset({IN_PROGRESS, RELEASED, PARKED})
_AFTER_ALL: Final = b"\xff"  # no text in UTF-8 has it


def share_of(limit: int) -> int:
    """Return how many records a shard gives for a page: mostly enough for a full one, and not many more."""
    return 2 * limit // SHARDS + 4


def page_calls(
    names: RedisNames, index: str, prefix: str, after: str | None, limit: int, before: bytes = b""
) -> list[ScriptCall]:
    """Return the calls for a page of an index whose order is that of keys.

    Args:
        names: the ledger's.
        index: its name.
        prefix: what the keys begin with.
        after: the last key of the page before.
        limit: the most records of the page.
        before: what the index's own entries begin with, before the key.
    """
    start = before + encoded(prefix)
    last = None if after is None else before + encoded(after)
    low = b"[" + start if last is None or last < start else b"(" + last
    high = b"(" + start + _AFTER_ALL if start else b"+"
    given = (low if low != b"[" else b"-", high, share_of(limit), before)
    return [ScriptCall(PAGE, (shard.base + b"record:", shard.index(index)), given) for shard in names.shards]


def merged(answers: Sequence[Any], limit: int) -> Page:
    """Return the page that the shards' answers make."""
    most = share_of(limit)
    entries: dict[bytes, Any] = {}
    bound: bytes | None = None  # after it, a shard may have more
    for _, found in answers:
        entries.update(found)
        if len(found) == most:
            bound = found[-1][0] if bound is None else min(bound, found[-1][0])
    keys = sorted(key for key in entries if bound is None or key <= bound)
    page = keys[:limit]
    records, damaged = read([(key, entries[key]) for key in page])
    is_last = bound is None and len(keys) <= limit
    return Page(records, None if is_last else page[-1].decode(), max(float(now) for now, _ in answers), damaged)


def find(store: "RedisStore", criteria: Criteria, prefix: str, after: str | None, limit: int) -> Steps[Page]:
    """Read one page of the records that ``criteria`` mean, in the order of their keys."""
    indexes = ["keys"]
    if criteria.are_about_messages:
        indexes = ["unsent"]
    elif criteria.are_within(UNFINISHED):
        indexes = [one for one in sorted(UNFINISHED) if not criteria.are_within(UNFINISHED - {one})]
    calls = [call for index in indexes for call in page_calls(store.names, index, prefix, after, limit)]
    page = merged((yield RoundTrip("find", calls)), limit)
    return page._replace(records=[one for one in page.records if meets(one, criteria.clause, page.now)])


def trace(store: "RedisStore", root: str, after: str | None, limit: int, scan: bool) -> Steps[Page]:  # noqa: ARG001 - an index finds them
    """Read one page of the records whose chain began at ``root``, in the order of their keys."""
    calls = page_calls(store.names, "origins", "", after, limit, encoded(root) + b"\0")
    return merged((yield RoundTrip("trace", calls)), limit)
