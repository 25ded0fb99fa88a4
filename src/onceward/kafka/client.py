"""How a cluster is reached: the settings of clients, from the environment and from the caller."""

import os
import ssl
from collections.abc import Mapping
from typing import Final

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaConnectionError, KafkaError

from onceward.consumers.settings import library_settings

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
