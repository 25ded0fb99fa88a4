"""A topic as a broker: what failed goes to the retry topic, and what cannot be handled to the dead-letter topic."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Unpack

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from onceward.consumers.broker import bounded
from onceward.consumers.callers import Tasks
from onceward.consumers.dead_letters import DELAY, FROM, GROUP, OURS, RECEIVES
from onceward.consumers.delivery import Delivery
from onceward.consumers.retry_topics import OF_RETRIES, KafkaMessage, send_copy
from onceward.consumers.worker import Worker, WorkerOptions
from onceward.core.clock import boottime
from onceward.core.policy import Policy
from onceward.kafka.reading import PATIENCE, WAIT, TopicReader
from onceward.kafka.topics import COPIES, Topics, connection, consumer_settings
from onceward.observe.logs import logger
from onceward.once import Once


class KafkaWorker(Worker[KafkaMessage]):
    """Handles the records of a topic, each once: ``KafkaWorker(once, "orders", charge, key="order.id").run()``.

    A record's offset is committed when its effect and those of all records before it are recorded, so a killed worker loses none. A
    record that failed, or whose key is busy, goes to the retry topic. It comes again after a pause, and its partition goes on.
    With ``order=True`` its partition waits for it instead. Records that cannot be handled (parked, mismatch, malformed) go to the
    dead-letter topic, with the reason in their headers.

    Args:
        once: the ledger and the defaults of the policy.
        topic: its name.
        handler: takes the value: decoded JSON, None for a deleted key. A plain function is called in threads.
        servers: ``host:port,host:port``; by default those of KAFKA_SERVERS, else localhost:9092.
        group: the consumer group; by default the namespace of the keys. Two handlers must not share one.
        order: whether the records of a partition are handled in order, one after the other.
        retry: the retry topic; by default ``TOPIC.onceward-retry``. It is made if it is missing, as is the next.
        dead: the dead-letter topic; by default ``TOPIC.onceward-dead``.
        settings: more settings of aiokafka's consumer, such as ``{"session_timeout_ms": 30_000, "group_instance_id": "w-1"}``.
        **options: those of :class:`onceward.consumers.worker.Worker`. ``max_attempts`` is 10 by default. The key is the header
            ``Idempotency-Key`` by default, or else the topic, partition, offset and timestamp. A producer that sends twice
            makes two offsets, so give ``key=``, a path over the value.

    Raises:
        ValueError, TypeError: an argument is not valid, or does not fit the handler.
    """

    def __init__(
        self,
        once: Once,
        topic: str,
        handler: Callable[..., object],
        *,
        servers: str | None = None,
        group: str | None = None,
        order: bool = False,
        retry: str | None = None,
        dead: str | None = None,
        settings: Mapping[str, object] | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        broker = KafkaBroker(
            Topics(topic, retry, dead), servers=servers, order=order, settings=consumer_settings(settings)
        )
        super().__init__(once, broker, handler, **options)
        broker.group = group or self._batch.name


class KafkaBroker(TopicReader):
    """One topic and its retry topic, for one run of a worker. The arguments are those of :class:`onceward.kafka.KafkaWorker`."""

    dead_letters = "publish"

    def __init__(self, topics: Topics, *, servers: str | None, order: bool, settings: Mapping[str, object]) -> None:
        super().__init__(topics, order=order)
        self._servers, self._settings = servers, settings
        self._tasks = Tasks()

    async def open(self, policy: Policy) -> Policy:
        reach = connection(self._servers, self._settings)
        await self._topics.prepare(reach, policy)
        self._keep = policy.retention
        self._producer = AIOKafkaProducer(**reach, **COPIES)
        try:
            await self._producer.start()
            await self._start({**self._settings, **reach})
        except KafkaError:
            await self.close()
            raise
        return bounded(policy)

    def delivery(self, message: KafkaMessage) -> Delivery:
        return message.delivery(grouped=self.ordered)

    def receives(self, message: KafkaMessage) -> int:
        return message.receives

    def acknowledge(self, message: KafkaMessage) -> None:
        message.partition.finish(message)
        self._changed.set()

    def give_back(self, message: KafkaMessage, seconds: float = 0.0) -> None:
        partition = message.partition
        if partition.revoked:
            partition.leave()
        elif self.ordered or not seconds:
            partition.put_back(message._replace(more=message.more + bool(seconds)), boottime() + seconds)
        else:
            self._tasks.begin(self._retry(message, seconds))
        self._changed.set()

    def leave(self, message: KafkaMessage) -> None:
        message.partition.leave()
        self._changed.set()

    async def dead_letter(self, message: KafkaMessage, headers: Mapping[str, str]) -> None:
        more = {**headers, FROM: message.origin, GROUP: self.group}
        await send_copy(self._producer, self._topics.dead, message, more, OF_RETRIES | OURS)

    def stop(self) -> None:
        self._stopping = True
        self._changed.set()

    async def close(self) -> None:
        self._stopping = True
        await self._tasks.end(PATIENCE)
        for end in (self._leave_group(), self._producer.stop()):
            try:
                async with asyncio.timeout(2 * PATIENCE):
                    await end
            except (KafkaError, TimeoutError) as error:
                logger().warning("topic %s: %r at the end; what is not committed comes again", self.name, error)

    async def _retry(self, message: KafkaMessage, seconds: float) -> None:
        """Send a record to the retry topic, so that its partition goes on. Until that works, it waits here."""
        more = {DELAY: f"{seconds:.3f}", RECEIVES: str(message.receives), FROM: message.origin, GROUP: self.group}
        try:
            sent = await send_copy(self._producer, self._topics.retry, message, more, OF_RETRIES)
        except Exception as error:
            logger().warning(
                "message %s is not in %s yet, and waits here: %r", message.place, self._topics.retry, error
            )
            again = message._replace(more=message.more + 1)
            message.partition.put_back(again, boottime() + max(seconds, WAIT))
        else:
            self._clock.learn(sent.timestamp_type, sent.timestamp, self._topics.retry)
            message.partition.finish(message)
        self._changed.set()
