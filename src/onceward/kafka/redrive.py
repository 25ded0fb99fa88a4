"""Moves the records of a dead-letter topic to the retry topic, where their workers handle them again."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final, Unpack

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.errors import KafkaError

from onceward.consumers.broker import BrokerError
from onceward.consumers.dead_letters import DELAY, GROUP, LEDGER_KEY, REASON, RECEIVES, STATUS
from onceward.consumers.redriving import DeadLetter, LetterRedrive, RedriveOptions
from onceward.consumers.retry_topics import KafkaMessage, send_copy
from onceward.kafka.reading import PATIENCE
from onceward.kafka.topics import COPIES, Topics, connection
from onceward.once import Once

_AT_ONCE: Final = 100  # letters that are moved before they are deleted
_DROPPED: Final = frozenset({STATUS, REASON, LEDGER_KEY, RECEIVES, DELAY})


class KafkaRedrive(LetterRedrive):
    """One move of a topic's dead letters. You can stop or kill it at any time, and run it again.

    The key of a letter is made ready to run again: unparked, or its attempts reset. Then the letter goes to the retry
    topic, and is deleted. A letter that stays goes to the end of the dead-letter topic. If a killed run moved a letter
    twice, it still takes effect once.

    Only one run may move the letters of a topic at a time, also if each has its own group. Each of two would put letters back
    that the other one has moved. If such a letter is moved after the ledger has forgotten its key, it takes effect again.

    Args:
        once: the ledger of the topic's workers.
        topic: the topic whose dead letters are moved.
        servers: as for :class:`onceward.kafka.KafkaWorker`, like ``retry`` and ``dead``.
        retry: the retry topic.
        dead: the dead-letter topic.
        group: move only letters of this consumer group; None moves all.
        **options: see :class:`onceward.consumers.redriving.RedriveOptions`.

    Raises:
        ValueError: an argument is not valid.
    """

    def __init__(
        self,
        once: Once,
        topic: str,
        *,
        servers: str | None = None,
        retry: str | None = None,
        dead: str | None = None,
        group: str | None = None,
        **options: Unpack[RedriveOptions],
    ) -> None:
        super().__init__(once, **options)
        self._topics, self._reach = Topics(topic, retry, dead), connection(servers)
        self._group = group
        self._producer: Any = None

    async def run_async(self, stopped: Callable[[], bool] = lambda: False) -> AsyncGenerator[DeadLetter, None]:
        """As :meth:`run`, for a coroutine; the ledger's requests block."""
        consumer = AIOKafkaConsumer(**self._reach, auto_offset_reset="earliest")
        admin = AIOKafkaAdminClient(**self._reach)
        self._producer = AIOKafkaProducer(**self._reach, **COPIES)
        try:
            count = (await self._topics.prepare(self._reach))[self._topics.dead]
            for client in (self._producer, consumer, admin):
                await client.start()
            places = [TopicPartition(self._topics.dead, number) for number in range(count)]
            consumer.assign(places)
            async with asyncio.timeout(PATIENCE):
                ends = await consumer.end_offsets(places)
                if not self._dry_run:  # deletes nothing, but a right that is missing shows before a letter moves
                    await _delete(admin, await consumer.beginning_offsets(places))
            while self._limit != 0 and (letters := await _next(consumer, ends, stopped)):
                done: dict[Any, int] = {}
                try:
                    for place, record in letters:
                        if self._limit == 0:
                            break
                        fate = await self._judged(KafkaMessage(record, ours=True))
                        done[place] = record.offset + 1
                        if fate is not None:
                            self._limit = None if self._limit is None else self._limit - 1
                            yield fate
                finally:  # also if the ledger fails, or nobody takes the next fate
                    if done and not self._dry_run:
                        await _delete(admin, done)
        except (KafkaError, TimeoutError) as error:
            raise BrokerError(f"topic {self._topics.dead}: {str(error) or 'no answer from Kafka'}") from error
        finally:
            await admin.close()
            await consumer.stop()
            await self._producer.stop()

    async def _judged(self, letter: KafkaMessage) -> DeadLetter | None:
        """Decide about a letter, and send it on or back; None if it is another group's."""
        outcome = None
        if self._group is None or letter.header(GROUP) in {None, self._group}:
            outcome = self.judged(letter.place, letter.header(LEDGER_KEY), letter.header(STATUS))
        if not self._dry_run and (outcome is None or outcome.outcome != "dropped"):
            moves = outcome is not None and outcome.outcome == "moved"
            topic, without = (self._topics.retry, _DROPPED) if moves else (self._topics.dead, frozenset())
            await send_copy(self._producer, topic, letter, {}, without)
        return outcome


async def _next(consumer: Any, ends: Mapping[Any, int], stopped: Callable[[], bool]) -> list[tuple[Any, Any]]:
    """Return the next records before the ends; none if there are none, or the run is to stop."""
    async with asyncio.timeout(PATIENCE):
        while not stopped() and any([await consumer.position(place) < end for place, end in ends.items()]):
            batch = await consumer.getmany(timeout_ms=500, max_records=_AT_ONCE)
            letters = [
                (place, record) for place, records in batch.items() for record in records if record.offset < ends[place]
            ]
            if letters:
                return letters
    return []


async def _delete(admin: Any, offsets: Mapping[Any, int]) -> None:
    """Delete the letters before these offsets. A committed offset would not do: Kafka forgets that after a week without commits."""
    async with asyncio.timeout(PATIENCE):
        await admin.delete_records({place: RecordsToDelete(offset) for place, offset in offsets.items()})
