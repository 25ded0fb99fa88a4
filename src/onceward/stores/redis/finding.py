"""Reading pages of records: each shard gives the first ones, and they are merged in the order of their keys."""

from collections.abc import Sequence
from typing import Any, Final

from onceward.core.drivers import Steps
from onceward.core.record import Record
from onceward.core.selections import ChainOf, DueWithin, Selection
from onceward.stores.contract import Damaged, Page, point_of, token_of
from onceward.stores.redis.names import SHARDS, RedisNames, encoded
from onceward.stores.redis.records import read
from onceward.stores.redis.requests import RoundTrip, ScriptCall
from onceward.stores.redis.scripts import DUE, PAGE
from onceward.stores.survey import UNFINISHED

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


def select(names: RedisNames, selection: Selection, after: str | None, limit: int) -> Steps[Page]:
    """Read one page of what is selected."""
    if isinstance(selection, DueWithin):
        return (yield from _due(names, after, limit, selection.seconds))
    if isinstance(selection, ChainOf):
        calls = page_calls(names, "origins", "", after, limit, encoded(selection.root) + b"\0")
        return merged((yield RoundTrip("select", calls)), limit)
    prefix, criteria = selection
    indexes = ["keys"]
    if criteria.are_about_messages:
        indexes = ["unsent"]
    elif criteria.are_within(UNFINISHED):
        indexes = [one for one in sorted(UNFINISHED) if not criteria.are_within(UNFINISHED - {one})]
    calls = [call for index in indexes for call in page_calls(names, index, prefix, after, limit)]
    page = merged((yield RoundTrip("select", calls)), limit)
    return page._replace(records=[one for one in page.records if selection.means(one, page.now)])


def _due(names: RedisNames, after: str | None, limit: int, ahead: float) -> Steps[Page]:
    at, key = point_of(after)
    most = share_of(limit)
    calls = [
        ScriptCall(DUE, (shard.base + b"record:", *shard.keys_of(b"")[1:]), (f"{at:.6f}", encoded(key), most, ahead))
        for shard in names.shards
    ]
    answers = yield RoundTrip("select", calls)
    now = max(float(answer[0]) for answer in answers)
    entries: list[Record] = []
    damaged: list[Damaged] = []
    bounds = []  # after the first of them, a shard may have more
    for _, found, _ in answers:
        records, broken = read(found)
        entries += records
        damaged += broken
        if len(found) == most and records:
            bounds.append(_place(records[-1]))
    bound = min(bounds, default=None)
    entries = sorted((one for one in entries if bound is None or _place(one) <= bound), key=_place)
    later = [float(answer[2]) - now for answer in answers if answer[2]]
    is_last = bound is None and len(entries) <= limit
    page = entries[:limit]
    following = None if is_last or not page else token_of(*_place(page[-1]))
    return Page(page, following, now, damaged, max(0.0, min(later)) if later else None)


def _place(record: Record) -> tuple[float, str]:
    return record.due_at or 0.0, record.key
