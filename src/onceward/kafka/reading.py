"""Reads topics ahead as a member of a consumer group, and commits offsets only below what is done.

One task reads without a pause, whatever handlers do, so the group never misses this member. Partitions whose records wait here in
numbers are paused.
"""

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka.errors import CommitFailedError, KafkaError

from onceward.consumers.broker import Broker, BrokerError
from onceward.consumers.callers import comes
from onceward.consumers.dead_letters import DELAY, GROUP
from onceward.consumers.retry_topics import BrokerClock, KafkaMessage
from onceward.core.clock import boottime
from onceward.kafka.topics import Topics
from onceward.observe.logs import logger


class Partition:
    """One assigned partition, from its assignment to its revocation.

    Attributes:
        held: how many messages are with the worker.
        revoked: whether it is another member's now. What is held is then nobody's business here.
        unsaid: whether more is done than was committed.
    """

    def __init__(self, *, ordered: bool) -> None:
        self.held = 0
        self.revoked = self.unsaid = False
        self._ordered = ordered
        self._waiting: list[tuple[float, int, KafkaMessage]] = []  # a heap: by time, or in order by offset alone
        self._offsets: deque[int] = deque()  # read, from the first one that is not done
        self._done: set[int] = set()
        self._next: int | None = None  # the offset after the last one read

    @property
    def waiting(self) -> int:
        """How many messages wait here."""
        return len(self._waiting)

    @property
    def span(self) -> int:
        """How many records were read since the first one that is not done."""
        return len(self._offsets)

    @property
    def committable(self) -> int | None:
        """The offset below which everything is done; None if nothing was read."""
        return self._offsets[0] if self._offsets else self._next

    def read(self, message: KafkaMessage, due: float | None) -> None:
        """Take in a record that was read, to be handled when it is due; None: it is not ours to handle."""
        offset = message.record.offset
        self._offsets.append(offset)
        self._next = offset + 1
        if due is None:
            self._pass(offset)
        else:
            self._wait(message, due)

    def take(self, most: int, now: float) -> Sequence[KafkaMessage]:
        """Return up to so many messages to handle now. In order: none before all that were taken are back."""
        if self._ordered and self.held:
            return []
        messages: list[KafkaMessage] = []
        while self._waiting and len(messages) < most and self._waiting[0][2].due <= now:
            messages.append(heappop(self._waiting)[2])
        self.held += len(messages)
        return messages

    @property
    def due(self) -> float | None:
        """When the next message can be taken; None if none can."""
        return None if not self._waiting or (self._ordered and self.held) else self._waiting[0][2].due

    def finish(self, message: KafkaMessage) -> None:
        """Count a held message as done."""
        self.held -= 1
        self._pass(message.record.offset)

    def _pass(self, offset: int) -> None:
        self._done.add(offset)
        while self._offsets and self._offsets[0] in self._done:
            self._done.remove(self._offsets.popleft())
            self.unsaid = True

    def put_back(self, message: KafkaMessage, due: float) -> None:
        """Put a message back into the partition's buffer."""
        self.held -= 1
        self._wait(message, due)

    def leave(self) -> None:
        """Hold a message no more that is not done: nothing is committed from there on."""
        self.held -= 1

    def _wait(self, message: KafkaMessage, due: float) -> None:
        place = 0.0 if self._ordered else due
        heappush(self._waiting, (place, message.record.offset, message._replace(due=due)))


WAIT: Final = 1.0  # seconds that a receive waits
PATIENCE: Final = 10.0  # seconds for an answer of the cluster
_COMMIT_EVERY: Final = 1.0  # seconds
_READ: Final = 500  # records of one read
_WAITING: Final = 500  # records that wait in one partition before it is paused
_SPAN: Final = 10_000  # records between the first that is not done and the last one read: so many may come again
_FINISH: Final = 10.0  # seconds that a rebalance waits for handlers that run
# A rebalance waits for handlers in other members, too, and for their commits.
_DEFAULTS: Final = {"auto_offset_reset": "earliest", "rebalance_timeout_ms": 60_000}


class TopicReader(Broker[KafkaMessage], ConsumerRebalanceListener):
    """The half of a broker that reads: the records of a topic and its retry topic, for one member of a group.

    Attributes:
        group: the consumer group.
    """

    most = 100
    client_errors = (KafkaError,)
    group = ""
    _producer: Any = None
    _consumer: Any = None

    def __init__(self, topics: Topics, *, order: bool) -> None:
        self.name, self.ordered = topics.main, order
        self._topics = topics
        self._clock = BrokerClock()
        self._changed = asyncio.Event()  # set when there may be something to take, or a message is done
        self._partitions: dict[Any, Partition] = {}  # by aiokafka's TopicPartition
        self._keep: float | None = None  # seconds that the ledger remembers what is done; None is for ever
        self._begun: set[Any] = set()  # retry partitions without a committed offset when they were assigned
        self._assigned = False  # whether partitions may be taken from: not while the group rebalances
        self._stopping = False
        self._trouble: BrokerError | None = None
        self._committing = asyncio.Lock()
        self._loops: list[asyncio.Task[None]] = []

    async def _start(self, settings: Mapping[str, object]) -> None:
        """Join the group; raises KafkaError."""
        own = {"group_id": self.group, "enable_auto_commit": False, "isolation_level": "read_committed"}
        self._consumer = AIOKafkaConsumer(**{**_DEFAULTS, **settings, **own})
        self._consumer.subscribe((self.name, self._topics.retry), listener=self)
        await self._consumer.start()
        self._loops = [asyncio.create_task(self._read()), asyncio.create_task(self._commit_often())]

    async def _leave_group(self) -> None:
        """Commit what is done, and leave the group."""
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        if self._consumer is not None:
            await self._commit()
            await self._consumer.stop()

    async def receive(self, count: int) -> Sequence[KafkaMessage]:
        """Wait for records that can be handled now."""
        until = boottime() + WAIT
        while not self._stopping:
            if messages := self._take(count):
                return messages
            now, due = boottime(), self._due
            if now < until:
                await comes(self._changed, max(0.0, min(until, due or until) - now))
            elif await self._is_empty():
                return []
            else:
                until = boottime() + WAIT
        return []

    def _take(self, count: int) -> list[KafkaMessage]:
        """Return up to so many messages that can be handled now, of all partitions in turn.

        Raises:
            BrokerError: they cannot be read.
        """
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            raise trouble
        messages: list[KafkaMessage] = []
        now = boottime()
        for place in list(self._partitions) if self._assigned else ():
            if len(messages) == count:
                break
            if some := self._partitions[place].take(count - len(messages), now):
                messages += some
                self._partitions[place] = self._partitions.pop(place)  # last in turn
        return messages

    @property
    def _due(self) -> float | None:
        """When the next message can be taken; None if none waits."""
        dues = [partition.due for partition in self._partitions.values() if partition.due is not None]
        return min(dues) if dues and self._assigned else None

    async def _is_empty(self) -> bool:
        """Return whether there is nothing to handle now: all is read, and what waits is not due."""
        if not self._assigned:
            return False
        try:
            async with asyncio.timeout(PATIENCE):
                places = self._consumer.assignment()
                ends = await self._consumer.end_offsets(places) if places else {}
                behind = [place for place in places if await self._consumer.position(place) < ends[place]]
        except TimeoutError as error:
            raise BrokerError(f"{self.name}: no answer from Kafka") from error
        return not behind and (self._due is None or self._due > boottime())

    async def on_partitions_revoked(self, revoked: object) -> None:
        """Finish what is held, as long as the group waits for that, commit what is done, and forget the rest."""
        self._assigned = False
        leaving = self._partitions
        until = boottime() + _FINISH
        while any(partition.held for partition in leaving.values()) and (remaining := until - boottime()) > 0:
            await comes(self._changed, remaining)
        await self._commit()
        for partition in leaving.values():
            partition.revoked = True
        self._partitions = {}

    async def on_partitions_assigned(self, assigned: set[Any]) -> None:
        """Begin with these partitions, each from its committed offset."""
        self._begun = set()
        await asyncio.gather(*(self._look(place) for place in assigned if place.topic == self._topics.retry))
        self._partitions = {place: Partition(ordered=self.ordered) for place in assigned}
        self._assigned = True
        self._changed.set()

    async def _look(self, place: Any) -> None:
        """Note whether a retry partition has a committed offset; it has none if the cluster does not say."""
        with contextlib.suppress(KafkaError, TimeoutError):
            async with asyncio.timeout(PATIENCE):
                if await self._consumer.committed(place) is not None:
                    return
        self._begun.add(place)

    async def _read(self) -> None:
        while True:
            try:
                batch = await self._consumer.getmany(timeout_ms=200, max_records=_READ)
            except Exception as error:  # what is no error of Kafka must end the worker, too: nobody reads any more
                is_final = not getattr(error, "retriable", False)
                self._trouble = BrokerError(f"{self.name}: {error!r}", gone=is_final)
                self._changed.set()
                await asyncio.sleep(WAIT)
                continue
            # Before the listener has ended, _sort lets the records come again. They must not be dropped here then.
            if self._assigned and not self._clock.known and any(place.topic == self._topics.retry for place in batch):
                before = self._partitions
                await self._clock.ask(self._producer, self._topics.retry)
                if self._partitions is not before:
                    continue  # the group has rebalanced, so these are read again, after those that were not done
            for place, records in batch.items():
                self._sort(place, records)
            self._balance()
            if batch:
                self._changed.set()
            if self._trouble is not None:
                await asyncio.sleep(WAIT)  # the worker ends

    def _sort(self, place: Any, records: Sequence[Any]) -> None:
        """Let records wait in their partition until they are due."""
        partition = self._partitions.get(place)
        if partition is None:  # it is being revoked; if it stays, read them again
            if place in self._consumer.assignment():
                self._consumer.seek(place, records[0].offset)
            return
        now, retried = boottime(), place.topic == self._topics.retry
        keep = math.inf if self._keep is None else self._keep
        for record in records:
            message = KafkaMessage(record, retried, partition)
            ours = message.told(GROUP) in {None, self.group}
            wait = self._clock.left(message.told(DELAY), record.timestamp)
            if ours and not wait and place in self._begun and self._clock.age(record.timestamp) > keep:
                self._consumer.seek(place, record.offset)  # so that nothing is committed beyond it
                self._trouble = BrokerError(
                    f"{message.place}: Kafka has no offset of the group {self.group} here, and the ledger may have forgotten that this record "
                    "was handled. Set the group's offset: kafka-consumer-groups --reset-offsets (docs/reference/brokers.md)",
                    gone=True,
                )
                return
            partition.read(message, now + wait if ours else None)

    def _balance(self) -> None:
        """Pause partitions that have enough, and resume those that need more."""
        paused, assigned = self._consumer.paused(), self._consumer.assignment()
        for place, partition in self._partitions.items():
            if place not in assigned:
                continue
            if place in paused:
                if partition.waiting < _WAITING // 2 and partition.span < _SPAN:
                    self._consumer.resume(place)
            elif partition.waiting >= _WAITING or partition.span >= _SPAN:
                self._consumer.pause(place)

    async def _commit_often(self) -> None:
        while True:
            await asyncio.sleep(_COMMIT_EVERY)
            await self._commit()

    async def _commit(self) -> None:
        """Commit for each partition the offset below which all is done."""
        async with self._committing:
            unsaid = {place: partition for place, partition in self._partitions.items() if partition.unsaid}
            offsets = {place: partition.committable for place, partition in unsaid.items()}
            for partition in unsaid.values():
                partition.unsaid = False
            try:
                if offsets:
                    async with asyncio.timeout(PATIENCE):
                        await self._consumer.commit(offsets)
            except Exception as error:  # the next commit says more
                for partition in unsaid.values():
                    partition.unsaid = True
                if not isinstance(error, CommitFailedError):  # that one says that the group is about to rebalance
                    logger().warning("%s: offsets are not committed yet: %r", self.name, error)
