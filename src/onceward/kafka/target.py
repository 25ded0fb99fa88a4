"""Topics as targets of the outbox."""

import asyncio
import os
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import unquote

from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    UnsupportedForMessageFormatError,
)

from onceward.consumers.dead_letters import KEY_HEADER
from onceward.core.arguments import check_type
from onceward.core.urls import shown_url
from onceward.kafka.topics import connection
from onceward.outbox.loop_thread import awaited
from onceward.outbox.targets import SENT_WITHIN, MessageNotSent, MessageRefused, OutboxMessage, refusal_of

_ANSWERED: Final = 5.0  # seconds; with the start of a producer less than SENT_WITHIN
_REFUSED: Final = (
    InvalidTopicError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    UnsupportedForMessageFormatError,
)
_TOPIC: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


class KafkaTarget:
    """A topic. A message's key is its header ``Idempotency-Key``; its ``group`` is the record's key, which chooses the partition.

    Records of one group keep their order. A record counts as sent when all replicas in sync have it (``acks=all``).

    Args:
        address: ``kafka:TOPIC`` on the servers of KAFKA_SERVERS, or ``kafka://HOST:PORT,HOST:PORT/TOPIC``. Credentials come from
            the environment.
        **settings: more of aiokafka's settings, such as ``ssl_context``. Register a scheme of your own to give some.

    Raises:
        ValueError: the address is not valid, or has a user.
    """

    batch = 100

    def __init__(self, address: str, **settings: Any) -> None:
        check_type("KafkaTarget(address)", address, str, "kafka:TOPIC")
        place = address.partition(":")[2]
        servers, _, topic = place.removeprefix("//").rpartition("/")
        self._topic = unquote(topic)
        if (
            place.startswith("//") is not bool(servers)
            or "@" in servers
            or not 0 < len(self._topic) < 250
            or not _TOPIC.issuperset(self._topic)
        ):
            raise ValueError(
                f"{shown_url(address)!r} is no topic: write kafka:TOPIC or kafka://HOST:PORT/TOPIC, without a user. Credentials come from "
                "the environment (docs/reference/brokers.md)"
            )
        self._reach = connection(servers or None, settings) | {"request_timeout_ms": int(_ANSWERED * 1000)}
        self._producer: Any = None
        self._process, self._starting = 0, asyncio.Lock()

    def check(self, message: OutboxMessage) -> None:
        """Raise ValueError if no topic can take the message."""
        if message.delay is not None:
            raise ValueError(f"{self._topic}: Kafka has no delay=; leave it out")
        if KEY_HEADER in message.headers:
            raise ValueError(f"headers: onceward itself writes {KEY_HEADER}; leave it out")

    def send(self, messages: Sequence[OutboxMessage]) -> list[Exception | None]:
        """Send records, and wait until all replicas in sync have them."""
        told: list[Exception | None] = [refusal_of(self, message) for message in messages]
        places = [place for place, refused in enumerate(told) if refused is None]
        answers: Sequence[Exception | None] = []
        try:
            if places:
                answers = awaited(self._sent([messages[place] for place in places]), SENT_WITHIN - 1)
        except Exception as error:  # whatever the client raises: it is sent again later
            answers = [self._told(error)] * len(places)
        for place, answer in zip(places, answers, strict=True):
            told[place] = answer
        return told

    def close(self) -> None:
        """Close the connections; the next send opens others."""
        producer, self._producer = self._producer, None
        if producer is not None and self._process == os.getpid():
            try:
                awaited(producer.stop(), _ANSWERED)
            except Exception:
                pass  # it is gone anyway

    async def _sent(self, messages: Sequence[OutboxMessage]) -> list[Exception | None]:
        producer = await self._started()
        futures = await asyncio.gather(
            *(self._queued(producer, message) for message in messages), return_exceptions=True
        )
        answers: list[Exception | None] = []
        for future in futures:
            error = future if isinstance(future, BaseException) else await _error_of(future)
            answers.append(None if error is None else self._told(error))
        for place, answer in enumerate(answers):
            if isinstance(answer, MessageRefused) and len(messages) > 1:  # a batch is refused because of one
                answers[place] = (await self._sent([messages[place]]))[0]
        return answers

    async def _queued(self, producer: Any, message: OutboxMessage) -> Any:
        headers = [(name, text.encode()) for name, text in {**message.headers, KEY_HEADER: message.key}.items()]
        key = None if message.group is None else message.group.encode()
        return await producer.send(self._topic, message.body.encode(), key, headers=headers)

    async def _started(self) -> Any:
        """Return the producer; all sends run in one event loop."""
        if self._process != os.getpid():  # a fork has another loop
            self._process, self._starting, self._producer = os.getpid(), asyncio.Lock(), None
        async with self._starting:
            if self._producer is None:
                producer = AIOKafkaProducer(**self._reach, acks="all")
                try:
                    await producer.start()
                except BaseException:
                    await producer.stop()
                    raise
                self._producer = producer
            return self._producer

    def _told(self, error: BaseException) -> MessageRefused | MessageNotSent:
        kind = MessageRefused if isinstance(error, _REFUSED) else MessageNotSent
        what = str(error) if isinstance(error, KafkaError) else f"{type(error).__name__}: {error}"
        told = kind(f"{self._topic}: {what}")
        told.__cause__ = error
        return told


async def _error_of(future: Any) -> BaseException | None:
    try:
        await future
    except Exception as error:
        return error
    return None
