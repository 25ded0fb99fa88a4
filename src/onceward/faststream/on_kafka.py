"""Kafka: a record that is not done goes to the retry topic, or its partition waits.

A partition that waits is paused at the record, and the consumer goes on with its other partitions. So it is also how a record of the
retry topic waits until it is due.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from faststream.exceptions import SetupError

from onceward.consumers.broker import BrokerError
from onceward.consumers.dead_letters import DELAY, FROM, GROUP, OURS, RECEIVES, retry_name
from onceward.consumers.delivery import Delivery
from onceward.consumers.retry_topics import (
    OF_RETRIES,
    TIMESTAMPS,
    BrokerClock,
    KafkaMessage,
    prepare_topics,
    send_copy,
)
from onceward.faststream.settlement import Settlement, Settling
from onceward.observe.logs import logger

_RETRY: Final = retry_name("")


class KafkaSettlement(Settlement):
    """Settles the records of a consumer group."""

    def __init__(self, subscriber: Any, options: Settling) -> None:
        super().__init__(subscriber, options)
        self._held: dict[TopicPartition, int] = {}  # of the current message: at which offset each waits
        self._clock = BrokerClock()
        self.group = subscriber.group_id

    def source_name(self) -> str:
        names = _topics(self.subscriber)
        return next(
            (name for name in names if not name.endswith(_RETRY)), names[0].removesuffix(_RETRY) if names else ""
        )

    def losing(self, beside: Sequence[Any]) -> str | None:
        names = set(_topics(self.subscriber))
        if len({name.removesuffix(_RETRY) for name in names}) != 1:
            return (
                "give each topic a subscriber of its own, by its name: its retries and dead letters are named after it"
            )
        if self.group is None:
            return "Kafka keeps no offsets without a group: give group_id="
        if self.subscriber._connection_args.get("auto_offset_reset") != "earliest":  # noqa: SLF001 - FastStream has no other way to it
            return "a new group, or a new partition, would begin at its end: give auto_offset_reset='earliest'"
        retry = retry_name(self.source)
        if not self.order and not any(retry in _topics(other) for other in beside):
            return (
                f"nobody reads {retry}, where busy and failed records wait: give it as a further topic of this subscriber, or "
                "@exactly(order=True), which holds back the partition instead"
            )
        if self.config.consumer_only:
            return "this broker sends nothing, so no record could be retried or dead-lettered: leave consumer_only out"
        settings = self._broker._connection_kwargs  # noqa: SLF001 - as above
        if settings.get("acks") not in {-1, "all"} and not settings.get("enable_idempotence"):
            return "what Kafka confirms may be lost with one node: give KafkaBroker(acks='all')"
        return None

    def deliveries(self, message: Any) -> list[Delivery]:
        self._held = {}
        raw = message.raw_message
        return [self._delivery(message, one) for one in (raw if isinstance(raw, tuple) else (raw,))]

    def readable(self, raw: Any) -> Any:
        return tuple(map(_readable, raw)) if isinstance(raw, tuple) else _readable(raw)

    async def prepare(self) -> None:
        """Make the topics of retries and dead letters, which keep what waits in them."""
        beside = {self.dead: {}} if self.order else {self.dead: {}, retry_name(self.source): TIMESTAMPS}
        make = self.config.allow_auto_create_topics
        try:
            await prepare_topics(self.config.admin.client, self.source, beside, self.policy, needed=False, make=make)
        except (BrokerError, ValueError) as error:
            raise SetupError(str(error)) from error

    async def ready(self, delivery: Delivery) -> bool:
        _, kafka_message = delivery.raw
        record = kafka_message.record
        if TopicPartition(record.topic, record.partition) in self._held:
            return False
        if kafka_message.told(GROUP) not in {None, self.group}:
            return False
        wait = kafka_message.told(DELAY)
        if wait is not None and not self._clock.known and self._producer is not None:
            await self._clock.ask(self._producer, retry_name(self.source))
        if (seconds := self._clock.left(wait, record.timestamp)) > 0:
            self._hold(delivery, seconds)
            return False
        return True

    async def receives(self, delivery: Delivery) -> int:
        _, kafka_message = delivery.raw
        return int(kafka_message.receives)

    async def acknowledge(self, delivery: Delivery) -> None:
        """Nothing yet: :meth:`close` commits the offsets of all."""

    async def give_back(self, delivery: Delivery, seconds: float, receives: int) -> None:
        if self.order:
            self._hold(delivery, seconds)
            return
        more = {DELAY: f"{seconds:.3f}", RECEIVES: str(receives)}
        try:
            await self._publish(retry_name(self.source), delivery, more, OF_RETRIES)
        except Exception as error:
            logger().warning("%s: record %s holds back its partition: %r", self.source, delivery.id, error)
            self._hold(delivery, seconds)

    async def wait(self, delivery: Delivery, seconds: float, receives: int) -> None:
        self._hold(delivery, seconds)  # else all records would move to the retry topic

    async def dead_letter(self, delivery: Delivery, headers: Mapping[str, str]) -> None:
        await self._publish(self.dead, delivery, headers, OF_RETRIES | OURS)

    async def close(self, message: Any) -> None:
        """Commit how far all is done: a partition that waits is at the record that it waits for."""
        with suppress(KafkaError):  # the group has changed; what is not committed comes again
            await message.ack()

    @property
    def _broker(self) -> Any:
        return self.config.extra_context["broker"]

    def _hold(self, delivery: Delivery, seconds: float) -> None:
        """Let the record's partition wait at it."""
        message, (record, *_) = delivery.raw
        place, consumer = TopicPartition(record.topic, record.partition), getattr(record, "consumer", message.consumer)
        if self._held.get(place, record.offset + 1) <= record.offset:  # it waits at this record, or at one before it
            return
        if not hasattr(consumer, "pause"):  # FastStream's TestKafkaBroker has no partitions
            return
        self._held[place] = record.offset
        try:
            consumer.seek(place, record.offset)
            consumer.pause(place)
        except (KafkaError, ValueError):  # it is another member's now
            return

        def go_on() -> None:
            with suppress(KafkaError, ValueError):
                consumer.resume(place)

        asyncio.get_running_loop().call_later(seconds, go_on)

    async def _publish(
        self, topic: str, delivery: Delivery, headers: Mapping[str, str], without: frozenset[str]
    ) -> None:
        """Send a copy of a record with all its headers, which FastStream would decode."""
        _, kafka_message = delivery.raw
        more, producer = {**headers, FROM: kafka_message.origin, GROUP: self.group}, self._producer
        if producer is None:  # FastStream's TestKafkaBroker
            record = kafka_message.record
            own = {name: text for name, text in _headers(record).items() if name not in without}
            await self._broker.publish(record.value, topic=topic, key=record.key, headers={**own, **more})
            return
        sent = await send_copy(producer, topic, kafka_message, more, without)
        if topic == retry_name(self.source):
            self._clock.learn(sent.timestamp_type, sent.timestamp, topic)

    @property
    def _producer(self) -> Any:
        """Return aiokafka's producer; None under FastStream's TestKafkaBroker."""
        state = getattr(self.config.producer, "_producer", None)  # FastStream has no other way to it
        return None if state is None else state.producer

    def _delivery(self, message: Any, record: Any) -> Delivery:
        kafka_message = KafkaMessage(record, ours=record.topic.endswith(_RETRY))
        delivery = kafka_message.delivery(grouped=True)
        delivery.raw = message, kafka_message
        return delivery


def _topics(subscriber: Any) -> list[str]:
    return [topic.name for topic in getattr(subscriber, "topics", ())]


def _headers(record: Any) -> dict[str, str]:
    return {name: value.decode(errors="backslashreplace") for name, value in record.headers if value is not None}


def _readable(record: Any) -> Any:
    """Return a record whose headers are text, as FastStream needs them."""
    headers = tuple((name, text.encode()) for name, text in _headers(record).items())
    if headers == tuple(record.headers):
        return record
    clean = copy(record)  # with its consumer, which is no field
    clean.headers = headers
    return clean
