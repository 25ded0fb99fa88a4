"""Finding the records of a Redis ledger whose messages are due."""

from typing import TYPE_CHECKING

from onceward.core.drivers import Steps
from onceward.errors import StoreError
from onceward.stores.capabilities import point_of, token_of
from onceward.stores.contract import DuePage
from onceward.stores.redis.finding import share_of
from onceward.stores.redis.names import encoded
from onceward.stores.redis.records import read
from onceward.stores.redis.requests import RoundTrip, ScriptCall
from onceward.stores.redis.scripts import DUE

if TYPE_CHECKING:
    from onceward.stores.redis.store import RedisStore


def outbox(store: "RedisStore") -> Steps[None]:
    """Check that messages are safe here (:data:`onceward.stores.capabilities.OUTBOX`)."""
    yield from store.load("?")  # the first use looks at the server
    if store.loses_messages:
        raise StoreError(
            f"ledger {store.url}: the server may evict any key (maxmemory-policy allkeys-…), also messages that are not sent yet: "
            "set maxmemory-policy noeviction to send messages with a record"
        )


def due(store: "RedisStore", after: str | None, limit: int, ahead: float) -> Steps[DuePage]:
    """Read the records whose messages are due (:data:`onceward.stores.capabilities.DUE`)."""
    at, key = point_of(after)
    most = share_of(limit)
    calls = [
        ScriptCall(DUE, (shard.base + b"record:", *shard.keys_of(b"")[1:]), (f"{at:.6f}", encoded(key), most, ahead))
        for shard in store.names.shards
    ]
    answers = yield RoundTrip("due", calls)
    now = max(float(answer[0]) for answer in answers)
    entries = [(record.due_at or 0.0, record.key, record) for answer in answers for record in read(answer[1])[0]]
    damaged = [one for answer in answers for one in read(answer[1])[1]]
    bounds = []  # after the first of them, a shard may have more
    for _, found, _ in answers:
        if len(found) == most and (records := read(found)[0]):
            bounds.append((records[-1].due_at or 0.0, records[-1].key))
    bound = min(bounds, default=None)
    entries = sorted(entry for entry in entries if bound is None or entry[:2] <= bound)
    page = [record for _, _, record in entries[:limit]]
    later = [float(answer[2]) - now for answer in answers if answer[2]]
    is_last = bound is None and len(entries) <= limit
    following = None if is_last or not page else token_of(page[-1].due_at or 0.0, page[-1].key)
    return DuePage(page, following, now, max(0.0, min(later)) if later else None, damaged)
