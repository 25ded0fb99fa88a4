"""The topics of a worker: its own, and those for retries and dead letters, which it makes if they are missing."""

import os
import ssl
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaConnectionError, KafkaError, TopicAlreadyExistsError, for_code

from onceward.consumers.broker import BrokerError
from onceward.consumers.dead_letters import dead_name, retry_name
from onceward.consumers.retry_topics import TIMESTAMPS, check_keeps, configs_like, configs_of
from onceward.consumers.settings import library_settings
from onceward.kafka.partitions import KafkaMessage

SERVERS: Final = "localhost:9092"
# Variables of the environment, and the settings of aiokafka that they give.
_VARIABLES: Final = {
    "KAFKA_SECURITY_PROTOCOL": "security_protocol",
    "KAFKA_SASL_MECHANISM": "sasl_mechanism",
    "KAFKA_SASL_USERNAME": "sasl_plain_username",
    "KAFKA_SASL_PASSWORD": "sasl_plain_password",
}
_CONNECTION: Final = frozenset(
    {
        "client_id",
        "connections_max_idle_ms",
        "metadata_max_age_ms",
        "request_timeout_ms",
        "retry_backoff_ms",
        "sasl_kerberos_domain_name",
        "sasl_kerberos_service_name",
        "sasl_mechanism",
        "sasl_oauth_token_provider",
        "sasl_plain_password",
        "sasl_plain_username",
        "security_protocol",
        "ssl_context",
    }
)
_OWN: Final = {
    "bootstrap_servers": "give servers=",
    "group_id": "give group=",
    "enable_auto_commit": "offsets are committed only below what is done",
    "isolation_level": "messages of aborted transactions are never handled",
    "key_deserializer": "annotate the handler's parameter",
    "value_deserializer": "annotate the handler's parameter",
    "max_poll_records": "give concurrency=",
}


def connection(servers: str | None, settings: Mapping[str, object] | None = None) -> dict[str, object]:
    """Return what every client of a cluster is made with: the environment's settings, and over them the caller's.

    ``servers`` is KAFKA_SERVERS by default, as ``host:port,host:port``.
    """
    found: dict[str, object] = {
        setting: os.environ[name] for name, setting in _VARIABLES.items() if os.environ.get(name)
    }
    found |= {name: value for name, value in (settings or {}).items() if name in _CONNECTION}
    found["bootstrap_servers"] = place = servers or os.environ.get("KAFKA_SERVERS") or SERVERS
    if "@" in place or "/" in place:
        raise ValueError(
            "servers: give HOST:PORT,HOST:PORT. A user and a password are settings: sasl_plain_username, sasl_plain_password"
        )
    if str(found.get("security_protocol", "")).endswith("SSL") and "ssl_context" not in found:
        found["ssl_context"] = ssl.create_default_context(cafile=os.environ.get("KAFKA_CA_FILE"))
    return found


def said(error: KafkaError, servers: object) -> str:
    """Return what to tell of an error: if no broker answered, which ones were asked."""
    if isinstance(error, KafkaConnectionError):
        return f"no broker answers at {servers}. Are they running, and is KAFKA_SERVERS right?"
    return str(error)


def consumer_settings(settings: Mapping[str, object] | None) -> dict[str, object]:
    """Return a consumer's settings.

    Raises:
        ValueError: the consumer does not have one, or it would break what the worker promises.
    """
    found = library_settings(settings, AIOKafkaConsumer, "aiokafka's consumer")
    for name in found:
        if name in _OWN:
            raise ValueError(f"settings: leave {name} out: {_OWN[name]}")
    return found


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
