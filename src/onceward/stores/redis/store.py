"""The ledger in Redis or Valkey. It looks at the server before its first request."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import SystemRandom
from typing import Any, Final

from redis.exceptions import RedisClusterException, RedisError

from onceward.core import worker
from onceward.core.drivers import Sleep, Steps, drive, drive_async
from onceward.core.record import Record, Reply, Write
from onceward.core.register import Answered
from onceward.core.selections import Selection
from onceward.errors import StoreError
from onceward.stores.contract import Damaged, DamagedRecord, Page, Purged
from onceward.stores.lanes.refusals import Broken
from onceward.stores.observed import Observed
from onceward.stores.redis.faults import translated
from onceward.stores.redis.finding import select
from onceward.stores.redis.names import SHARDS, RedisNames, Shard, encoded
from onceward.stores.redis.records import arguments, damaged, damaged_of, reply_of, reply_to
from onceward.stores.redis.requests import (
    BellWait,
    Confirmation,
    RedisRequest,
    RoundTrip,
    ScriptCall,
    WriteCall,
)
from onceward.stores.redis.schema import prepare
from onceward.stores.redis.scripts import DELETE, EXPIRED, INSERT, LOAD, PURGE, READ_HASH, SWAP, WAITING, Script
from onceward.stores.redis.servers import Servers

PURGE_EVERY, PURGE_LIMIT = 1000, 2500  # purge up to 2,500 records after every 1,000 keys: it asks each shard
_ERRORS: Final = (Broken, RedisError, RedisClusterException, UnicodeError)
_PREPARING: Final = {"ask", "prepare"}  # requests of the look at the server itself
_NAP: Final = 0.01  # seconds between two looks at whether the waiter that listens has heard something


class RedisStore(Observed):
    """A ledger in Redis 6.2 or newer, or Valkey."""

    resolution = 0.0
    poll = 0.05  # seconds; a waiter's look is a read by key
    max_result = 256 * 1024
    capabilities: Final[Mapping[str, str]] = {
        "observe": "onceward.stores.observed:observe",
        "outbox": "onceward.stores.contract:finds_due",
        **{
            name: f"onceward.stores.redis.inspection:{name}"
            for name in ("exists", "inspect", "migrate", "provision", "survey")
        },
    }

    def __init__(
        self, conduit: Servers, confirmation: Confirmation, names: RedisNames, url: str, timeout: float
    ) -> None:
        self.conduit = conduit
        self.confirmation = confirmation
        self.timeout = timeout
        self.url = url
        self.names = names
        self._ready = False
        self._looks: dict[asyncio.AbstractEventLoop, asyncio.Task[bool]] = {}  # under way
        # The keys whose change a waiter of this process waits for; a fork leaves those of its parent.
        self._listening: dict[tuple[int, str], object] = {}
        self._claims = SystemRandom().randrange(PURGE_EVERY)  # also processes that end early purge now and then

    def exchange(self, request: Any) -> Any:
        if not (self._ready or request.action in _PREPARING):
            drive(self.prepare(), self)
        try:
            reply = self._reply(request, self.conduit.run(request))
        except _ERRORS as error:
            raise translated(error, self.url) from error
        if self._is_purging(request):
            with suppress(StoreError):  # the next one will
                drive(self.purge(PURGE_LIMIT), self)
        return reply

    async def exchange_async(self, request: Any) -> Any:
        if not (self._ready or request.action in _PREPARING):
            await self._look()
        try:
            reply = self._reply(request, await self.conduit.run_async(request))
        except _ERRORS as error:
            raise translated(error, self.url) from error
        if self._is_purging(request):
            with suppress(StoreError):
                await drive_async(self.purge(PURGE_LIMIT), self)
        return reply

    async def _look(self) -> None:
        """Look at the server, once for all tasks of an event loop that wait for it. One that is cancelled stops no other."""
        loop = asyncio.get_running_loop()
        if (look := self._looks.get(loop)) is None:
            look = self._looks[loop] = loop.create_task(drive_async(self.prepare(), self))
            look.add_done_callback(partial(self._end_look, loop))
        await asyncio.shield(look)

    def _end_look(self, loop: asyncio.AbstractEventLoop, look: "asyncio.Task[bool]") -> None:
        self._looks.pop(loop, None)
        if not look.cancelled():
            look.exception()  # all who waited for it may have gone

    def prepare(self) -> Steps[bool]:
        """Make the ledger, and return whether it was not there before."""
        is_new = yield from prepare(self.names, self.url)
        self._ready = True
        return is_new

    def _is_purging(self, request: Any) -> bool:
        """Return whether it is time to purge: after so many keys that were asked for."""
        if request.action in {"insert", "insert_many"}:
            self._claims += len(request.calls)
            if self._claims >= PURGE_EVERY:
                self._claims = 0
                return True
        return False

    def close(self) -> None:
        self.conduit.close()

    def action(self, request: Any) -> str:
        return str(request.action)

    def _reply(self, request: RedisRequest, answers: list[Any]) -> Any:
        if request.each:
            return [translated(one, self.url) if isinstance(one, Exception) else one for one in answers]
        for one in answers:
            if isinstance(one, Exception):
                raise one
        return answers

    # --- the verbs ----------------------------------------------------------------------------------------------------

    def insert(self, write: Write) -> Steps[Reply]:
        return self._one("insert", write.key, self._call(write, None), partial(reply_to, write))

    def swap(self, write: Write, seen: Record) -> Steps[Reply]:
        return self._one("swap", write.key, self._call(write, seen), partial(reply_to, write))

    def load(self, key: str) -> Steps[Reply]:
        return self._one("load", key, self._on(LOAD, encoded(key)), reply_of)

    def _one(
        self, action: str, key: str, call: ScriptCall | WriteCall, reply: Callable[[bytes], Reply]
    ) -> Steps[Reply]:
        (answer,) = yield RoundTrip(action, [call])
        try:
            return reply(answer)
        except UnicodeDecodeError as error:
            raise (yield from self._damaged(key, error)) from error

    def _damaged(self, key: str, error: UnicodeDecodeError) -> Steps[DamagedRecord]:
        """Return the error of a record with a text that is no UTF-8, which is read as Redis has it."""
        (flat,) = yield RoundTrip("load", [self._on(READ_HASH, encoded(key))])
        return damaged(flat, error)

    def insert_many(self, writes: Sequence[Write]) -> Steps[list[Answered]]:
        """Insert each, all in one round trip."""
        return self._many("insert_many", [(write, None) for write in writes])

    def swap_many(self, pairs: Sequence[tuple[Write, Record]]) -> Steps[list[Answered]]:
        """Swap each, all in one round trip."""
        return self._many("swap_many", pairs)

    def _many(self, action: str, pairs: Sequence[tuple[Write, Record | None]]) -> Steps[list[Answered]]:
        replies: list[Answered] = []
        calls = [self._call(*pair) for pair in pairs]
        answers: list[Any] = (yield RoundTrip(action, calls, each=True)) if calls else []
        for (write, _), answer in zip(pairs, answers, strict=True):
            try:
                replies.append(answer if isinstance(answer, StoreError) else reply_to(write, answer))
            except DamagedRecord as error:
                replies.append(error)
            except UnicodeDecodeError as error:
                replies.append((yield from self._damaged(write.key, error)))
        return replies

    def _call(self, write: Write, seen: Record | None) -> WriteCall:
        key = encoded(write.key)
        return WriteCall(INSERT if seen is None else SWAP, self.names.shard_of(key), key, arguments(write, seen))

    def _on(self, script: Script, key: bytes, *arguments: object) -> ScriptCall:
        return ScriptCall(script, self.names.shard_of(key).keys_of(key), arguments)

    def changed(self, key: str, seconds: float, most: float, /) -> Steps[None]:
        """Wait until the claim of this key ends. One waiter of a process listens, and the others wait for that one."""
        place = worker.generation, key
        listening = self._listening.get(place)
        if listening is not None:
            slept, longest = 0.0, min(most, self.timeout)  # in a busy event loop, it may hear nothing
            while slept < longest and self._listening.get(place) is listening:
                yield Sleep(_NAP)
                slept += _NAP
            return
        self._listening[place] = object()
        try:
            yield from self._listen(key, most)
        except StoreError:
            yield Sleep(seconds)
        finally:
            self._listening.pop(place, None)

    def _listen(self, key: str, most: float) -> Steps[None]:
        call = self._on(WAITING, encoded(key), round(min(most, self.timeout / 2) * 1000))
        (milliseconds,) = yield RoundTrip("changed", [call])
        if milliseconds:
            yield BellWait(call.keys[2], milliseconds / 1000)

    def select(self, selection: Selection, after: str | None, limit: int) -> Steps[Page]:
        return select(self.names, selection, after, limit)

    def delete(self, seen: Record | Damaged) -> Steps[Reply]:
        key, version = encoded(seen.key), seen.seen if isinstance(seen, Damaged) else None
        if isinstance(seen, Record):
            version = ("owner", seen.owner, "fence", seen.fence, "beat", seen.beat)
        assert isinstance(version, tuple)
        reply = yield from self._one("delete", seen.key, self._on(DELETE, key, key, *version), reply_of)
        return reply._replace(record=seen) if reply.won and isinstance(seen, Record) else reply

    def purge(self, limit: int, after: str | None = None) -> Steps[Purged]:
        """Delete expired records that Redis does not delete by itself: those that are not completed."""
        start, _, offset = (after or "0 0").partition(" ")
        first, skipped = int(start), int(offset)
        shards = self.names.shards[first:]
        counts = yield RoundTrip("purge", [_in(shard, EXPIRED) for shard in shards])
        shares: list[tuple[int, int, int]] = []  # number of a shard, what to skip there, and the most to delete
        remaining, following = limit, None
        for number, count in enumerate(counts, first):
            skip = skipped if number == first else 0
            share = min(remaining, count - skip)
            if share > 0:
                shares.append((number, skip, share))
                remaining -= share
            if remaining == 0:
                following = number
                break
        if not shares:
            return Purged(0, None)
        answers = yield RoundTrip("purge", [_in(self.names.shards[n], PURGE, skip, share) for n, skip, share in shares])
        deleted = sum(answer[0] for answer in answers)
        damaged = [damaged_of(key, flat) for answer in answers for key, flat in answer[2]]
        if following is None:
            return Purged(deleted, None, damaged)
        # What stays is in front of the rest of its shard.
        last, skip, _ = shares[-1]
        point = f"{last} {skip + answers[-1][1]}" if last == following else f"{following} 0"
        return Purged(deleted, point if int(point.partition(" ")[0]) < SHARDS else None, damaged)


def _in(shard: Shard, script: Script, *arguments: object) -> ScriptCall:
    """Return a call for a whole shard."""
    return ScriptCall(script, shard.keys_of(b""), arguments)
