"""Topics as targets of the outbox."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    InvalidTopicError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    UnsupportedForMessageFormatError,
)

from onceward.consumers.dead_letters import KEY_HEADER
from onceward.core.urls import shown_url
from onceward.kafka.topics import connection
from onceward.outbox.loop_thread import LoopTarget
from onceward.outbox.targets import OutboxMessage, refuse_options

_ANSWERED: Final = 5.0  # seconds; with the start of a producer less than SENT_WITHIN
_TOPIC: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


class KafkaTarget(LoopTarget[Any]):
    """A topic. A message's key is its header ``Idempotency-Key``; its ``group`` is the record's key, which chooses the partition.

    Records of one group keep their order. A record counts as sent when all replicas in sync have it (``acks=all``).

    Args:
        address: ``kafka:TOPIC`` on the servers of KAFKA_SERVERS, or ``kafka://HOST:PORT,HOST:PORT/TOPIC``. Credentials come from
            the environment.
        **settings: more of aiokafka's settings, such as ``ssl_context``. To give some, register a scheme of your own.

    Raises:
        ValueError: the address is not valid, or has a user.
    """

    batch = 100
    _refused = (
        InvalidTopicError,
        MessageSizeTooLargeError,
        RecordListTooLargeError,
        UnsupportedForMessageFormatError,
    )

    def __init__(self, address: str, **settings: Any) -> None:
        place = address.partition(":")[2]
        servers, _, topic = place.removeprefix("//").rpartition("/")
        super().__init__(unquote(topic))
        if (
            place.startswith("//") is not bool(servers)
            or "@" in servers
            or not 0 < len(self._where) < 250
            or not _TOPIC.issuperset(self._where)
        ):
            raise ValueError(
                f"{shown_url(address)!r} is not a topic: write kafka:TOPIC or kafka://HOST:PORT/TOPIC, without a user. "
                "Credentials come from the environment (docs/reference/brokers.md)"
            )
        self._reach = connection(servers or None, settings) | {"request_timeout_ms": int(_ANSWERED * 1000)}

    def check(self, message: OutboxMessage) -> None:
        """Raise ValueError if no topic can take the message."""
        refuse_options(f"{self._where}: Kafka", message, "delay")
        if KEY_HEADER in message.headers:
            raise ValueError(f"headers: onceward itself writes {KEY_HEADER}; leave it out")

    async def _connect(self) -> Any:
        """Return a producer."""
        producer = AIOKafkaProducer(**self._reach, acks="all")
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        return producer

    async def _disconnect(self, client: Any) -> None:
        """Stop a producer."""
        await client.stop()

    async def _deliver(self, client: Any, messages: Sequence[OutboxMessage]) -> Sequence[Exception | None]:
        """Send records, and wait until all replicas in sync have them."""
        sends = (self._sent(client, message) for message in messages)
        results = await asyncio.gather(*sends, return_exceptions=True)
        answers: list[Any] = [one if isinstance(one, BaseException) else None for one in results]
        for place, error in enumerate(answers):
            if isinstance(error, self._refused) and len(messages) > 1:  # a batch is refused because of one
                answers[place] = (await self._deliver(client, [messages[place]]))[0]
        return answers

    async def _sent(self, producer: Any, message: OutboxMessage) -> None:
        headers = [(name, text.encode()) for name, text in {**message.headers, KEY_HEADER: message.key}.items()]
        key = None if message.group is None else message.group.encode()
        await producer.send_and_wait(self._where, message.body.encode(), key, headers=headers)
