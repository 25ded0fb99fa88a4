"""When a record of a retry topic of Kafka is due: by the broker's clock, whatever the clocks of workers say.

Kafka has no delay, so a record's header says how long it waits, counted from its timestamp. The retry topic is made with
``message.timestamp.type=LogAppendTime``: the broker stamps its records. The answer to each record that is sent there has the
broker's time, too.
"""

import logging
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from onceward.consumers.dead_letters import DELAY, FROM, GROUP, RECEIVES
from onceward.core.clock import boottime

_log: Final = logging.getLogger("onceward")
# Settings of topics for retries and dead letters: a cluster's own defaults could delete or compact what waits for a person.
KEEPS: Final[Mapping[str, str]] = MappingProxyType(
    {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
)
TIMESTAMPS: Final[Mapping[str, str]] = MappingProxyType({"message.timestamp.type": "LogAppendTime"})  # of a retry topic
CLOCK: Final = "onceward-clock"  # the group of a record that only asks for the time: all groups skip it
# Headers that count in a retry topic only. Elsewhere they were copied from there by a handler that forwards headers.
OF_RETRIES: Final = frozenset({DELAY, FROM, GROUP, RECEIVES})
# Settings of a topic that say what survives a lost node. Those for its retries and dead letters have the same.
_LASTING: Final = ("min.insync.replicas", "unclean.leader.election.enable")
_LONGEST: Final = 86400.0 * 7  # seconds
_STAMPED_BY_BROKER: Final = 1


async def configs_of(admin: Any, topic: str) -> dict[str, str]:
    """Return the settings of a topic; none if this user may not read them."""
    answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    return {
        entry[0]: entry[1] for answer in answers for resource in answer.resources for entry in resource[4] if entry[1]
    }


def configs_like(configs: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a topic that keeps what waits in it, and is as durable as the one with these ``configs``."""
    return {**KEEPS, **{name: configs[name] for name in _LASTING if name in configs}}


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
        _log.warning("topic %s: its settings cannot be read, so nobody checks whether it keeps its records", topic)
    elif (kept := int(configs.get("retention.ms", -1))) >= 0:
        _log.warning("topic %s forgets what is not handled within %.3g s: set retention.ms=-1", topic, kept / 1000)


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
            _log.warning(
                "topic %s: its senders stamp its records, so retries come too early or too late when a clock is wrong: give it %s",
                topic,
                dict(TIMESTAMPS),
            )
        self._stamps, self._ahead = stamps, timestamp / 1000 - boottime()

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
        now = boottime() + self._ahead if self._stamps else time.time()
        return max(0.0, min(seconds, stamped / 1000 + seconds - now))
