"""Reading pages of records: each shard gives the first ones, and they are merged in the order of their keys."""

from collections.abc import Sequence
from typing import Any, Final

from onceward.core.drivers import Steps
from onceward.core.selections import ChainOf, DueWithin, Selection
from onceward.stores.contract import Page, point_of, token_of
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
    arguments = (low if low != b"[" else b"-", high, share_of(limit), before)
    return [ScriptCall(PAGE, (shard.base + b"record:", shard.index(index)), arguments) for shard in names.shards]


def merged(answers: Sequence[Any], limit: int, *, by_time: bool = False) -> Page:
    """Return the page that the shards' answers make, in the order of keys, or of scores and keys."""
    most = share_of(limit)
    entries: dict[tuple[float, bytes], Any] = {}
    bounds = []  # after the first of them, a shard may have more
    for _, rows, *_ in answers:
        places = [(float(score[0]) if score else 0.0, key) for key, _, *score in rows]
        entries |= zip(places, rows, strict=True)
        if len(rows) == most:
            bounds.append(places[-1])
    bound = min(bounds, default=None)
    order = sorted(place for place in entries if bound is None or place <= bound)
    page = order[:limit]
    records, damaged = read([entries[place][:2] for place in page])
    following = None
    if bound is not None or len(order) > limit:
        at, key = page[-1]
        following = token_of(at, key.decode()) if by_time else key.decode()
    return Page(records, following, max(float(answer[0]) for answer in answers), damaged)


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
    page = merged(answers, limit, by_time=True)
    later = [float(answer[2]) - page.now for answer in answers if answer[2]]
    return page._replace(wait=max(0.0, min(later)) if later else None)
