"""Records of Kafka and their copies, and when one of a retry topic is due: by the broker's clock, whatever the clocks of workers say.

Kafka has no delay, so a record's header says how long it waits, counted from its timestamp. The retry topic is made with
``message.timestamp.type=LogAppendTime``: the broker stamps its records. The answer to each record that is sent there has the
broker's time, too.
"""

import asyncio
import time
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from aiokafka.admin import NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from onceward.consumers.broker import BrokerError, tell_outlived
from onceward.consumers.dead_letters import DELAY, FROM, GROUP, KEY_HEADER, RECEIVES, receives_in
from onceward.consumers.delivery import Delivery
from onceward.core.clock import boottime
from onceward.core.policy import Policy
from onceward.observe.logs import logger

# Settings of topics for retries and dead letters: a cluster's own defaults could delete or compact what waits for a person.
KEEPS: Final[Mapping[str, str]] = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
TIMESTAMPS: Final[Mapping[str, str]] = {"message.timestamp.type": "LogAppendTime"}  # of a retry topic
_PATIENCE: Final = 10.0  # seconds for the broker to tell its time
CLOCK: Final = "onceward-clock"  # the group of a record that only asks for the time: all groups skip it
# Headers that count in a retry topic only. Elsewhere they were copied from there by a handler that forwards headers.
OF_RETRIES: Final = frozenset({DELAY, FROM, GROUP, RECEIVES})
# Settings of a topic that say what survives a lost node. Those for its retries and dead letters have the same.
_LASTING: Final[tuple[str, ...]] = ("min.insync.replicas", "unclean.leader.election.enable")
ROOM: Final = 65536  # bytes that our headers may add to a record
_LARGEST: Final = 1048588  # bytes of a record batch: Kafka's own default of message.max.bytes
_LONGEST: Final = 86400.0 * 7  # seconds
_STAMPED_BY_BROKER: Final = 1


async def configs_of(admin: Any, topic: str) -> dict[str, str]:
    """Return the settings of a topic; none if this user may not read them."""
    answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    return {
        entry[0]: entry[1] for answer in answers for resource in answer.resources for entry in resource[4] if entry[1]
    }


async def prepare_topics(
    admin: Any,
    main: str,
    beside: Mapping[str, Mapping[str, str]],
    policy: Policy | None = None,
    *,
    needed: bool = True,
    make: bool = True,
) -> dict[str, int]:
    """Look at a topic, and make those for its retries and dead letters like it if they are missing.

    Args:
        admin: of the cluster.
        main: the topic.
        beside: those beside it, by name, with what is special about their settings.
        policy: of the worker. It is warned if the topic keeps records for longer than the ledger their keys.
        needed: whether the topic must be there.
        make: whether to make topics.

    Returns:
        How many partitions each has that is there.

    Raises:
        BrokerError: the topic is missing, or another one is and cannot be made.
        ValueError: a topic beside it loses what is in it.
    """
    there: dict[str, list[Any]] = {topic["topic"]: topic["partitions"] for topic in await admin.describe_topics()}
    if needed and main not in there:
        raise BrokerError(f"topic {main} does not exist: create it, or correct its name")
    for name in beside.keys() & there.keys():
        check_keeps(name, await configs_of(admin, name))
    configs = await configs_of(admin, main) if main in there else {}
    if policy is not None and "retention.ms" in configs:
        seconds = int(configs["retention.ms"]) / 1000
        tell_outlived(f"topic {main}", None if seconds < 0 else seconds, policy)
    partitions = there.get(main, [{"replicas": [0]}])
    copies = max(1, min(len(partition["replicas"]) for partition in partitions))
    room = {"max.message.bytes": str(int(configs.get("max.message.bytes", _LARGEST)) + ROOM)}
    lasting = {name: configs[name] for name in _LASTING if name in configs}
    for name in sorted(beside.keys() - there.keys()) if make else []:
        settings: dict[str, str] = {**room, **KEEPS, **lasting, **beside[name]}
        new = NewTopic(name, len(partitions), copies, topic_configs=settings)
        (answer,) = (await admin.create_topics([new])).topic_errors
        error = for_code(answer[1])
        if answer[1] and error is not TopicAlreadyExistsError:
            raise BrokerError(
                f"topic {name} is missing and cannot be made ({error.__name__}): create it with {len(partitions)} partition(s), {copies} "
                f"replica(s), {', '.join(f'{name}={value}' for name, value in settings.items())}"
            )
    return {name: len(there.get(name, partitions)) for name in (main, *beside)}


def check_keeps(topic: str, configs: Mapping[str, str]) -> None:
    """Check a topic for retries or dead letters that is there; warn if it forgets after a time, or is not known.

    Raises:
        ValueError: it drops records because of others.
    """
    losses = []
    if "compact" in configs.get("cleanup.policy", ""):
        losses.append("it is compacted, so only the last record of a key stays: set cleanup.policy=delete")
    if int(configs.get("retention.bytes", -1)) >= 0:
        losses.append("it drops its oldest records when it is full: set retention.bytes=-1")
    if losses:
        raise ValueError(f"topic {topic} loses retries or dead letters: {'; '.join(losses)}")
    if not configs:
        logger().warning("topic %s: its settings cannot be read. Check yourself that it keeps its records", topic)
    elif (milliseconds := int(configs.get("retention.ms", -1))) >= 0:
        logger().warning(
            "topic %s deletes records that are not handled within %.3g s: set retention.ms=-1",
            topic,
            milliseconds / 1000,
        )


class KafkaMessage(NamedTuple):
    """A record, and where it was first.

    Attributes:
        record: aiokafka's.
        ours: whether it was read from a topic that only onceward sends to, so that our headers count.
        partition: where it waits in a worker.
        more: how often it was received here, after the first time.
        due: when it can be handled, on this machine's clock.
    """

    record: Any
    ours: bool
    partition: Any = None
    more: int = 0
    due: float = 0.0

    def header(self, name: str) -> str | None:
        """Return a header's text; the last one, if there are several."""
        for own, value in reversed(self.record.headers):
            if own == name:
                return value.decode(errors="backslashreplace") if isinstance(value, bytes) else None
        return None

    def told(self, name: str) -> str | None:
        """Return the text of one of our own headers; None if the record's sender wrote it."""
        return self.header(name) if self.ours else None

    @property
    def receives(self) -> int:
        """How often it was received, including this time and the times before its retries."""
        return receives_in(self.told(RECEIVES)) + 1 + self.more

    @property
    def place(self) -> str:
        """Where it is: topic, partition and offset."""
        return f"{self.record.topic}/{self.record.partition}/{self.record.offset}"

    @property
    def origin(self) -> str:
        """The place and the timestamp of the first copy of the message. Offsets begin again when a topic is created again."""
        origin = self.told(FROM) or ""
        return origin if origin.count("/") == 3 else f"{self.place}/{self.record.timestamp}"

    def delivery(self, *, grouped: bool) -> Delivery:
        """Return it as a handler sees it. By default the key is its header, or else where it was first."""
        record = self.record
        return Delivery(
            "kafka",
            record,
            self.place,
            self.header(KEY_HEADER) or tuple(self.origin.split("/")),
            f"{record.topic}-{record.partition}" if grouped else None,
            record.value,
            self.header,
            record.topic,
        )


async def send_copy(
    producer: Any, topic: str, message: KafkaMessage, headers: Mapping[str, str], without: Collection[str]
) -> Any:
    """Send a copy of a record to the retry topic or the dead letters; return aiokafka's answer when it is stored.

    Its headers are those of the record, except the ones ``without``, and those that are ``headers``. The partition has the number of
    the record's first one, so that records keep their order.
    """
    record = message.record
    same = [(name, value) for name, value in record.headers if name not in without]
    more = [(name, text.encode()) for name, text in headers.items()]
    key = b"" if record.key is None and record.value is None else record.key  # aiokafka needs one of them
    number = message.origin.split("/")[-3]
    partition = int(number if number.isdecimal() else 0) % len(await producer.partitions_for(topic))
    return await producer.send_and_wait(topic, record.value, key, partition, headers=[*same, *more])


class BrokerClock:
    """The time of the broker, as the answers to what was sent to a retry topic tell it."""

    def __init__(self) -> None:
        self._ahead: float | None = None  # of our boot time; None before the first answer
        self._stamps = True  # whether the broker stamps the records of the topic

    @property
    def known(self) -> bool:
        """Whether there was an answer."""
        return self._ahead is not None

    def learn(self, timestamp_type: int, timestamp: float, topic: str) -> None:
        """Take in the timestamp, in milliseconds, of the answer to a record that was sent to the retry topic just now."""
        stamps = timestamp_type == _STAMPED_BY_BROKER
        if self._stamps and not stamps:
            logger().warning(
                "topic %s: its senders stamp its records, so retries come too early or too late when a clock is wrong: give it %s",
                topic,
                dict(TIMESTAMPS),
            )
        self._stamps, self._ahead = stamps, timestamp / 1000 - boottime()

    async def ask(self, producer: Any, topic: str) -> None:
        """Send a record that all groups skip to the retry topic, because its answer tells the broker's time."""
        try:
            async with asyncio.timeout(_PATIENCE):
                sent = await producer.send_and_wait(topic, b"", headers=[(GROUP, CLOCK.encode())])
        except (KafkaError, TimeoutError) as error:
            logger().warning("topic %s: the broker's time is not known yet: %r", topic, error)
        else:
            self.learn(sent.timestamp_type, sent.timestamp, topic)

    def left(self, asked: str | None, stamped: float) -> float:
        """Return for how many seconds a record must still wait.

        Args:
            asked: its header that says how long it waits in all; None if it has none.
            stamped: its timestamp in milliseconds.
        """
        try:
            seconds = max(0.0, min(float(asked or 0), _LONGEST))
        except ValueError:
            return 0.0
        if self._ahead is None:
            return seconds  # rather too long than too short
        return max(0.0, min(seconds, seconds - self.age(stamped)))

    def age(self, stamped: float) -> float:
        """Return how many seconds ago a record got its timestamp, which is in milliseconds."""
        now = time.time() if self._ahead is None or not self._stamps else boottime() + self._ahead
        return now - stamped / 1000
