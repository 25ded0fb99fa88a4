"""The topics of a worker: its own, and those for retries and dead letters, which it makes if they are missing."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from onceward.consumers.broker import BrokerError
from onceward.consumers.dead_letters import dead_name, retry_name
from onceward.consumers.retry_topics import TIMESTAMPS, check_keeps, configs_like, configs_of
from onceward.kafka.client import said
from onceward.kafka.partitions import KafkaMessage

ROOM: Final = 65536  # bytes that our headers may add to a record
_LARGEST: Final = 1048588  # bytes of a record batch: Kafka's own default of message.max.bytes
# Settings of a producer of copies. The broker limits a record's compressed size. So a copy is compressed, as the original may be, and
# aiokafka, which counts before that, sets no limit.
COPIES: Final[Mapping[str, Any]] = MappingProxyType(
    {"acks": "all", "compression_type": "gzip", "max_request_size": 2**31 - 1}
)


class Topics:
    """The names of the three topics.

    Attributes:
        main: the topic whose records are handled.
        retry: where records wait for their next try.
        dead: where records go that cannot be handled.
        largest: the most bytes of a record in ``retry`` and ``dead``; known after :meth:`prepare`, as the next.
        partitions: how many partitions ``retry`` and ``dead`` have.
        keeps: for how many seconds ``main`` keeps a record; negative for ever, None if that is not known.
    """

    def __init__(self, main: str, retry: str | None = None, dead: str | None = None) -> None:
        self.main, self.retry, self.dead = main, retry or retry_name(main), dead or dead_name(main)
        self.largest = _LARGEST + ROOM
        self.partitions: dict[str, int] = {}
        self.keeps: float | None = None
        if len({self.main, self.retry, self.dead}) < 3:
            raise ValueError(f"topic {main!r}, retry={self.retry!r}, dead={self.dead!r}: give three different topics")

    async def prepare(self, reach: Mapping[str, object]) -> None:
        """Look for the topics, and make those for retries and dead letters like the main one if they are missing.

        Raises:
            BrokerError: the topic is missing, or another one is and cannot be made.
            ValueError: the topic for retries or dead letters loses them.
        """
        admin = AIOKafkaAdminClient(**reach)
        try:
            await admin.start()
            await self._prepare(admin)
        except KafkaError as error:
            raise BrokerError(f"topic {self.main}: {said(error, reach['bootstrap_servers'])}") from error
        finally:
            await admin.close()

    async def _prepare(self, admin: Any) -> None:
        known = {topic["topic"]: topic["partitions"] for topic in await admin.describe_topics()}
        if self.main not in known:
            raise BrokerError(f"topic {self.main} does not exist: create it, or correct its name")
        configs = await configs_of(admin, self.main)
        self.largest = int(configs.get("max.message.bytes", _LARGEST)) + ROOM
        self.keeps = int(configs["retention.ms"]) / 1000 if "retention.ms" in configs else None
        partitions = known[self.main]
        copies = max(1, min(len(partition["replicas"]) for partition in partitions))
        for name in (self.retry, self.dead):
            if name in known:
                check_keeps(name, await configs_of(admin, name))
            else:
                await self._make(admin, name, len(partitions), copies, configs_like(configs))
            self.partitions[name] = len(known.get(name, partitions))

    async def _make(self, admin: Any, name: str, partitions: int, copies: int, configs: dict[str, str]) -> None:
        configs = {"max.message.bytes": str(self.largest), **configs}
        if name == self.retry:
            configs |= TIMESTAMPS
        made = NewTopic(name, partitions, copies, topic_configs=configs)
        (answer,) = (await admin.create_topics([made])).topic_errors
        error = for_code(answer[1])
        if answer[1] and error is not TopicAlreadyExistsError:
            raise BrokerError(
                f"topic {name} is missing and cannot be made ({error.__name__}): create it with {partitions} partition(s), {copies} "
                f"replica(s), {', '.join(f'{name}={value}' for name, value in configs.items())}"
            )


async def send_copy(
    producer: Any, topics: Topics, topic: str, message: KafkaMessage, headers: Sequence[tuple[str, bytes]]
) -> Any:
    """Send a copy of a record to the retry topic or the dead letters; return aiokafka's answer when it is stored.

    The partition has the number of the record's first one, so that records keep their order.
    """
    value, key = message.record.value, message.record.key
    if value is None and key is None:
        key = b""  # aiokafka sends no record without both
    partition = message.partition_number % topics.partitions[topic]
    return await producer.send_and_wait(topic, value, key, partition, headers=list(headers))
