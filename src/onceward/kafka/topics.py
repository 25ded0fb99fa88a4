"""The topics of a worker: its own, and those for retries and dead letters, which it makes if they are missing."""

import os
import ssl
from collections.abc import Mapping
from inspect import signature
from typing import Any, Final

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient

from onceward.consumers.dead_letters import dead_name, retry_name
from onceward.consumers.retry_topics import TIMESTAMPS, prepare_topics
from onceward.consumers.worker import library_settings
from onceward.core.policy import Policy

SERVERS: Final = "localhost:9092"
# Variables of the environment, and the settings of aiokafka that they give.
_VARIABLES: Final = {
    "KAFKA_SECURITY_PROTOCOL": "security_protocol",
    "KAFKA_SASL_MECHANISM": "sasl_mechanism",
    "KAFKA_SASL_USERNAME": "sasl_plain_username",
    "KAFKA_SASL_PASSWORD": "sasl_plain_password",
}
# Settings that every client of a cluster takes.
_CONNECTION: Final = signature(AIOKafkaAdminClient).parameters.keys() - {"api_version", "bootstrap_servers", "loop"}
# Settings of the consumer that are the worker's own: offsets are committed only below what is done, a retry topic is read from its
# beginning, and the handler's annotation says how a value is read.
_OWN: Final = frozenset(
    {
        "bootstrap_servers",
        "group_id",
        "auto_offset_reset",
        "enable_auto_commit",
        "isolation_level",
        "key_deserializer",
        "value_deserializer",
        "max_poll_records",
    }
)


def connection(servers: str | None, settings: Mapping[str, object] | None = None) -> dict[str, object]:
    """Return what every client of a cluster is made with: the environment's settings, and over them the caller's.

    ``servers`` is KAFKA_SERVERS by default, as ``host:port,host:port``.
    """
    options: dict[str, object] = {
        setting: os.environ[name] for name, setting in _VARIABLES.items() if os.environ.get(name)
    }
    options |= {name: value for name, value in (settings or {}).items() if name in _CONNECTION}
    options["bootstrap_servers"] = place = servers or os.environ.get("KAFKA_SERVERS") or SERVERS
    if "@" in place or "/" in place:
        raise ValueError(
            "servers: give HOST:PORT,HOST:PORT. A user and a password are settings: sasl_plain_username, sasl_plain_password"
        )
    if str(options.get("security_protocol", "")).endswith("SSL") and "ssl_context" not in options:
        options["ssl_context"] = ssl.create_default_context(cafile=os.environ.get("KAFKA_CA_FILE"))
    return options


def consumer_settings(settings: Mapping[str, object] | None) -> dict[str, object]:
    """Return a consumer's settings.

    Raises:
        ValueError: the consumer does not have one, or it would break what the worker promises.
    """
    options = library_settings(settings, AIOKafkaConsumer, "aiokafka's consumer")
    if own := options.keys() & _OWN:
        raise ValueError(f"settings: leave {', '.join(sorted(own))} out: the worker sets it")
    return options


# Settings of a producer of copies. The broker limits a record's compressed size. So a copy is compressed, as the original may be, and
# aiokafka, which counts before that, sets no limit.
COPIES: Final[Mapping[str, Any]] = {"acks": "all", "compression_type": "gzip", "max_request_size": 2**31 - 1}


class Topics:
    """The names of the three topics.

    Attributes:
        main: the topic whose records are handled.
        retry: where records wait for their next try.
        dead: where records go that cannot be handled.
    """

    def __init__(self, main: str, retry: str | None = None, dead: str | None = None) -> None:
        self.main, self.retry, self.dead = main, retry or retry_name(main), dead or dead_name(main)
        if len({self.main, self.retry, self.dead}) < 3:
            raise ValueError(f"topic {main!r}, retry={self.retry!r}, dead={self.dead!r}: give three different topics")

    async def prepare(self, reach: Mapping[str, object], policy: Policy | None = None) -> dict[str, int]:
        """As :func:`onceward.consumers.retry_topics.prepare_topics`."""
        admin = AIOKafkaAdminClient(**reach)
        try:
            await admin.start()
            return await prepare_topics(admin, self.main, {self.retry: TIMESTAMPS, self.dead: {}}, policy)
        finally:
            await admin.close()
