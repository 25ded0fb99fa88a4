"""A stream of Redis as a broker: a consumer group, and a stream for the dead letters.

What this worker holds, or keeps for a later try, stays pending in the group, and is renewed. A killed worker renews nothing, so that
another one claims its entries when they have been idle for long enough.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Unpack

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from onceward.consumers.broker import Broker, BrokerError, bounded, check_settings, tell_outlived
from onceward.consumers.callers import Tasks
from onceward.consumers.dead_letters import add_letter, dead_name
from onceward.consumers.delivery import Delivery
from onceward.consumers.worker import Worker, WorkerOptions
from onceward.core.clock import boottime
from onceward.core.policy import Policy
from onceward.core.urls import encoded_url
from onceward.observe.logs import logger
from onceward.once import Once
from onceward.redis_streams.message import (
    AGAIN,
    CLAIM,
    FORGET,
    RENEW,
    StreamEntry,
    entries_in,
    entry_delivery,
    letter_fields,
)
from onceward.stores.redis.schema import info_of, is_evicting

TROUBLE: Final = (RedisError, OSError, TimeoutError)  # what redis-py raises when a server is away, or refuses
_WAIT: Final = 1.0  # seconds that one request for new entries waits; a stop waits as long
_PATIENCE: Final = 10.0  # seconds for any other answer
_CONNECTION: Final[dict[str, Any]] = {
    "socket_timeout": _PATIENCE,
    "socket_connect_timeout": _PATIENCE,
    "retry": Retry(NoBackoff(), 0),
    "protocol": 2,
    "decode_responses": False,
}
_NAMES: Final = "onceward-"  # how the names of our consumers begin
_FORGOTTEN: Final = 3_600_000  # milliseconds after which the name of a consumer that has gone is forgotten


class RedisStreamsBroker(Broker[StreamEntry]):
    """One consumer of a group, for one run of a worker. The arguments are those of :class:`onceward.redis_streams.RedisStreamsWorker`.

    Raises:
        ValueError: an argument is not valid.
    """

    most = 100
    dead_letters = "publish"
    client_errors = TROUBLE

    def __init__(self, url: str, stream: str, *, dead: str, idle: float) -> None:
        if not 1 <= idle <= 86_400:
            raise ValueError(f"idle={idle!r}: give 1 to 86400 seconds")
        if dead == stream:
            raise ValueError(f"{stream} is both the stream and that of its dead letters: give another dead=")
        self.name, self._dead, self.group = stream, dead, ""
        self._idle = round(idle * 1000)
        self._consumer = f"{_NAMES}{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
        self._client = redis.asyncio.Redis.from_url(url, **_CONNECTION)
        pool = self._client.connection_pool
        if options := [name for name, ours in _CONNECTION.items() if pool.connection_kwargs[name] is not ours]:
            raise ValueError(f"url=: leave {', '.join(options)} out: the worker sets it")
        try:
            pool.connection_class(**pool.connection_kwargs)  # not yet connected
        except TypeError as error:
            raise ValueError("url=: its query has a name that redis-py does not know") from error
        self._held: set[str] = set()
        self._waiting: dict[str, float] = {}  # entries that wait here for their next try, until when
        self._looked = 0.0  # when others' entries were looked at
        self._renewing: asyncio.Task[None] | None = None
        self._stopped = False
        self._tasks = Tasks(*TROUBLE)  # what is not acknowledged comes again, and replays

    async def open(self, policy: Policy) -> Policy:
        try:
            info = info_of(await self._client.info("everything"))
            check_settings(f"stream {self.name}", losses(info), risks(info))
            tell_outlived(f"stream {self.name}", None, policy)
            await self._make_group()
            await self._client.eval(FORGET, 1, self.name, self.group, _NAMES, _FORGOTTEN)
        except BaseException:
            await self._client.aclose()
            raise
        self._renewing = asyncio.create_task(self._renew())
        return bounded(policy)

    async def _make_group(self) -> None:
        """Make the group, which begins with the first entry, and the stream, if they are missing."""
        try:
            await self._client.xgroup_create(self.name, self.group, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    async def receive(self, count: int) -> Sequence[StreamEntry]:
        try:
            if self._stopped:
                return []
            return await self._again(count) or await self._claimed(count) or await self._fresh(count)
        except ResponseError as error:
            if "NOGROUP" in str(error):
                logger().warning(
                    "stream %s or its group was deleted; what it held is lost. It is made again", self.name
                )
                with contextlib.suppress(*TROUBLE):
                    await self._make_group()
            raise

    async def _again(self, count: int) -> list[StreamEntry]:
        """Return entries whose pause is over."""
        now = boottime()
        ids = [name for _, name in sorted((due, name) for name, due in self._waiting.items() if due <= now)[:count]]
        if not ids:
            return []
        for name in ids:
            del self._waiting[name]
        self._held.update(ids)
        try:
            answer = await self._client.eval(AGAIN, 1, self.name, self.group, self._consumer, *ids)
        except BaseException:
            for name in ids:
                self._keep(name, _WAIT)
            raise
        entries = self._entries(answer)
        self._held.difference_update(set(ids) - {entry.id for entry in entries})  # others have them, or nobody
        return entries

    async def _claimed(self, count: int) -> list[StreamEntry]:
        """Return entries whose worker has not renewed them for too long."""
        if boottime() < self._looked + min(5.0, self._idle / 4000):
            return []
        self._looked = boottime()
        start: Any = b"0-0"
        while True:
            answer = await self._client.eval(CLAIM, 1, self.name, self.group, self._consumer, self._idle, start, count)
            start, raw, deleted = answer
            if deleted:
                self._tell_gone(name.decode() for name in deleted)
            ours = self._held | self._waiting.keys()  # this process was paused
            entries = [entry for entry in self._entries(raw) if entry.id not in ours]
            if entries:
                self._looked = 0.0  # there may be more
            if entries or start == b"0-0":
                self._held.update(entry.id for entry in entries)
                return entries

    async def _fresh(self, count: int) -> list[StreamEntry]:
        """Return new entries; wait a while for them."""
        until = min([boottime() + _WAIT, *self._waiting.values()])
        block = max(1, round((until - boottime()) * 1000))
        answer: Any = await self._client.xreadgroup(
            self.group, self._consumer, {self.name: ">"}, count=count, block=block
        )
        raw = answer[0][1] if answer else []
        entries = [StreamEntry(name.decode(), fields, 1) for name, fields in raw]
        self._held.update(entry.id for entry in entries)
        return entries

    def _entries(self, raw: Iterable[Any]) -> list[StreamEntry]:
        """Return what a script has found. What was deleted from the stream while it was pending is told."""
        entries, deleted = entries_in(raw)
        if deleted:
            self._tell_gone(deleted)
        return entries

    def _tell_gone(self, names: Iterable[str]) -> None:
        logger().error(
            "stream %s: %s are deleted before they were handled, and lost: let producers trim less (MAXLEN, MINID)",
            self.name,
            ", ".join(names),
        )

    async def _renew(self) -> None:
        """Keep what this worker has."""
        while True:
            await asyncio.sleep(self._idle / 3000)
            names = [*self._held, *self._waiting]
            if names:
                try:
                    answer = await self._client.eval(RENEW, 1, self.name, self.group, self._consumer, 0, *names)
                except TROUBLE as error:
                    logger().warning("stream %s: %s; others may claim what this worker holds", self.name, error)
                else:
                    for name in set(names) - {name.decode() for name in answer}:
                        self._waiting.pop(name, None)  # another worker has it

    def delivery(self, message: StreamEntry) -> Delivery:
        return entry_delivery(message, self.name)

    def receives(self, message: StreamEntry) -> int:
        return message.receives

    def acknowledge(self, message: StreamEntry) -> None:
        self._held.discard(message.id)
        self._tasks.begin(self._client.xack(self.name, self.group, message.id))

    def give_back(self, message: StreamEntry, seconds: float = 0.0) -> None:
        if seconds > 0 and not self._stopped:
            self._keep(message.id, seconds)
        else:
            self._held.discard(message.id)
            self._tasks.begin(self._free(message.id, seconds))

    def leave(self, message: StreamEntry) -> None:
        self._held.discard(message.id)

    def _keep(self, name: str, seconds: float) -> None:
        """Keep an entry for later."""
        self._held.discard(name)
        self._waiting[name] = boottime() + seconds

    async def _free(self, name: str, seconds: float) -> None:
        """Let anybody claim an entry in ``seconds``, at the latest when it has been idle for long enough."""
        idle = max(0, self._idle - round(seconds * 1000))
        await self._client.eval(RENEW, 1, self.name, self.group, self._consumer, idle, name)

    async def dead_letter(self, message: StreamEntry, headers: Mapping[str, str]) -> None:
        await add_letter(self._client, self._dead, self.name, self.group, message.id, letter_fields(message, headers))

    def explained(self, error: Exception) -> BrokerError:
        advice = " Is the server running, and is REDIS_URL right?" if isinstance(error.__context__, OSError) else ""
        return BrokerError(f"stream {self.name}: {str(error) or type(error).__name__}{advice}")

    def stop(self) -> None:
        self._stopped = True
        waiting, self._waiting = self._waiting, {}
        for name, due in waiting.items():
            self._tasks.begin(self._free(name, max(0.0, due - boottime())))

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        await self._tasks.end()
        with contextlib.suppress(*TROUBLE):
            await self._client.eval(FORGET, 1, self.name, self.group, self._consumer, 0)
        await self._client.aclose()


def losses(info: Mapping[str, str]) -> Iterator[str]:
    """Yield each setting that loses entries, and its fix. ``info`` is what INFO says."""
    if is_evicting(dict(info)):
        yield (f"it evicts streams when it is full ({info['maxmemory_policy']}): set maxmemory-policy noeviction")
    if info.get("role", "master") != "master":
        yield "it is a replica, which takes no writes: give the address of the primary"
    elif info.get("aof_enabled") == "0" and info.get("connected_slaves", "0") == "0":
        yield ("its append-only file is off and it has no replica, so a restart loses entries: set appendonly yes")


def risks(info: Mapping[str, str]) -> Iterator[str]:
    """Yield what can lose entries, but does not have to."""
    if info.get("connected_slaves", "0") != "0":
        yield "its replicas follow asynchronously, so a failover loses the last entries"


LOCAL: Final = "redis://127.0.0.1:6379/0"


class RedisStreamsWorker(Worker[StreamEntry]):
    """Handles the entries of a stream, each once: ``RedisStreamsWorker(once, "orders", charge, key="order.id").run()``.

    An entry is acknowledged when this handler, or an earlier one, has recorded its effect. A failed entry comes again
    after a pause that doubles with each receive, and a busy key's entry when the other worker's lease ends. It stays
    pending in the meantime. The entries of a killed worker are claimed by another one. Entries that cannot be handled
    (a parked key, another input under the same key, a malformed entry) go to the dead letters. Their headers say why.

    A server whose settings lose entries is refused at the start. The stream and the group are made then if they are missing.

    Args:
        once: the ledger and the defaults of the policy.
        stream: its name.
        handler: takes the payload: the field ``__data__`` as :func:`onceward.redis_streams.send` writes it, else an object of all
            fields. A plain function is called in threads.
        url: of the server, as ``redis://user:password@host:6379/0``; ``rediss://`` for TLS. By default that of REDIS_URL, else the
            one on this machine.
        group: the consumer group; by default the namespace of the keys. Two handlers must not share one.
        dead: the stream of the dead letters; by default ``STREAM.onceward-dead``.
        idle: seconds after which the entries of a killed worker are claimed. All workers of a group must give the same.
        **options: those of :class:`onceward.consumers.worker.Worker`; the key is by default the header ``Idempotency-Key``, else the
            stream and the entry's id. ``max_attempts`` is 10 by default.

    Raises:
        ValueError, TypeError: an argument is not valid, or does not fit the handler.
    """

    def __init__(
        self,
        once: Once,
        stream: str,
        handler: Callable[..., object],
        *,
        url: str | None = None,
        group: str | None = None,
        dead: str | None = None,
        idle: float = 60.0,
        **options: Unpack[WorkerOptions],
    ) -> None:
        where = encoded_url(url or os.environ.get("REDIS_URL") or LOCAL)
        broker = RedisStreamsBroker(where, stream, dead=dead or dead_name(stream), idle=idle)
        super().__init__(once, broker, handler, **options)
        broker.group = group or self._batch.name
