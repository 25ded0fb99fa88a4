"""The ledger in Redis or Valkey."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from onceward.core.drivers import Sleep, Steps
from onceward.core.record import Record, Reply, Write
from onceward.core.register import Answered
from onceward.core.selections import Selection
from onceward.errors import StoreError
from onceward.stores.contract import Damaged, Page, Purged
from onceward.stores.redis.exchange import RedisExchange
from onceward.stores.redis.finding import select
from onceward.stores.redis.names import SHARDS, Shard, encoded
from onceward.stores.redis.records import answered, arguments, damaged_of, reply_of, reply_to
from onceward.stores.redis.requests import BellWait, RoundTrip, ScriptCall, WriteCall
from onceward.stores.redis.scripts import DELETE, EXPIRED, INSERT, LOAD, PURGE, SWAP, WAITING, Script

_NAP: Final = 0.01  # seconds between two looks at whether the waiter that listens has heard something


class RedisStore(RedisExchange):
    """A ledger in Redis 6.2 or newer, or Valkey. Make one with :func:`onceward.stores.redis.open_ledger`."""

    resolution = 0.0
    poll = 0.05  # seconds; a waiter's look is a read by key
    max_result = 256 * 1024
    capabilities: Final[Mapping[str, str]] = {
        "found": "onceward.stores.redis.provision:found",
        "inspect": "onceward.stores.redis.inspection:inspect",
        "migrate": "onceward.stores.redis.provision:migrate",
        "observe": "onceward.stores.observed:observe",
        "outbox": "onceward.stores.redis.provision:outbox",
        "provision": "onceward.stores.redis.provision:provision",
        "survey": "onceward.stores.redis.survey:survey",
    }

    def insert(self, write: Write) -> Steps[Reply]:
        """Write if the key is absent."""
        (answer,) = yield RoundTrip("insert", [self._insert(write)])
        return reply_to(write, answer)

    def swap(self, write: Write, seen: Record) -> Steps[Reply]:
        """Write if the record is still the version seen."""
        (answer,) = yield RoundTrip("swap", [self._swap(write, seen)])
        return reply_to(write, answer)

    def load(self, key: str) -> Steps[Reply]:
        """Read one record."""
        (answer,) = yield RoundTrip("load", [self._on(LOAD, encoded(key))])
        return reply_of(answer)

    def insert_many(self, writes: Sequence[Write]) -> Steps[list[Answered]]:
        """Insert each, all in one round trip."""
        return (yield from _many("insert_many", list(writes), list(map(self._insert, writes))))

    def swap_many(self, pairs: Sequence[tuple[Write, Record]]) -> Steps[list[Answered]]:
        """Swap each, all in one round trip."""
        return (yield from _many("swap_many", [one for one, _ in pairs], [self._swap(*pair) for pair in pairs]))

    def _insert(self, write: Write) -> WriteCall:
        key = encoded(write.key)
        return WriteCall(INSERT, self.names.shard_of(key), key, arguments(write))

    def _swap(self, write: Write, seen: Record) -> WriteCall:
        key = encoded(write.key)
        version = (seen.owner, str(seen.fence), str(seen.beat))
        return WriteCall(SWAP, self.names.shard_of(key), key, arguments(write, *version))

    def _on(self, script: Script, key: bytes, *arguments: object) -> ScriptCall:
        return ScriptCall(script, self.names.shard_of(key).keys_of(key), arguments)

    def changed(self, key: str, seconds: float, most: float, /) -> Steps[None]:
        """Wait until the claim of this key ends. One waiter of a process listens, and the others wait for that one."""
        listening = self._listening.get(key)
        if listening is not None:
            slept, longest = 0.0, min(most, self.bare.conduit.timeout)  # in a busy event loop, it may hear nothing
            while slept < longest and self._listening.get(key) is listening:
                yield Sleep(_NAP)
                slept += _NAP
            return
        self._listening[key] = object()
        try:
            yield from self._listen(key, most)
        except StoreError:
            yield Sleep(seconds)
        finally:
            self._listening.pop(key, None)

    def _listen(self, key: str, most: float) -> Steps[None]:
        call = self._on(WAITING, encoded(key), round(min(most, self.bare.conduit.timeout / 2) * 1000))
        (left,) = yield RoundTrip("changed", [call])
        if left:
            yield BellWait(call.keys[2], left / 1000)

    def select(self, selection: Selection, after: str | None, limit: int) -> Steps[Page]:
        """Read records in the order of their keys, or the longest due first."""
        return select(self.names, selection, after, limit)

    def delete(self, seen: Record | Damaged) -> Steps[Reply]:
        """Delete if the record is still the version seen."""
        key = encoded(seen.key)
        version: Sequence[object]
        if isinstance(seen, Damaged):
            assert isinstance(seen.seen, tuple)
            version = seen.seen
        else:
            version = ("owner", seen.owner, "fence", seen.fence, "beat", seen.beat)
        (answer,) = yield RoundTrip("delete", [self._on(DELETE, key, key, *version)])
        return reply_of(answer, is_read=not isinstance(seen, Damaged))

    def purge(self, limit: int, after: str | None = None) -> Steps[Purged]:
        """Delete expired records that Redis does not delete by itself: those that are not completed."""
        start, _, offset = (after or "0 0").partition(" ")
        first, skipped = int(start), int(offset)
        shards = self.names.shards[first:]
        counts = yield RoundTrip("purge", [_in(shard, EXPIRED) for shard in shards])
        asked: list[tuple[int, int, int]] = []  # number of a shard, what to skip there, and the most to delete
        left, following = limit, None
        for number, count in enumerate(counts, first):
            skip = skipped if number == first else 0
            share = min(left, count - skip)
            if share > 0:
                asked.append((number, skip, share))
                left -= share
            if left == 0:
                following = number
                break
        if not asked:
            return Purged(0, None)
        answers = yield RoundTrip("purge", [_in(self.names.shards[n], PURGE, skip, share) for n, skip, share in asked])
        gone = sum(answer[0] for answer in answers)
        damaged = [damaged_of(key, flat) for answer in answers for key, flat in answer[2]]
        if following is None:
            return Purged(gone, None, damaged)
        # What stays is in front of the rest of its shard.
        last, skip, _ = asked[-1]
        point = f"{last} {skip + answers[-1][1]}" if last == following else f"{following} 0"
        return Purged(gone, point if int(point.partition(" ")[0]) < SHARDS else None, damaged)

    def purging(self, limit: int) -> Steps[object]:
        return self.purge(limit)


def _in(shard: Shard, script: Script, *arguments: object) -> ScriptCall:
    """Return a call for a whole shard."""
    return ScriptCall(script, shard.keys_of(b""), arguments)


def _many(action: str, writes: list[Write], calls: list[WriteCall]) -> Steps[list[Answered]]:
    if not calls:
        return []
    answers: list[Any] = yield RoundTrip(action, calls, each=True)
    return [answered(answer, write) for answer, write in zip(answers, writes, strict=True)]
