"""What a stream and its consumer lose, and which consumer a worker makes."""

import re
from collections.abc import Iterator
from typing import Final

from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig

from onceward.consumers.nats_letters import is_limited, queue_losses

ACK_WAIT: Final = 30.0  # seconds; the worker tells JetStream thrice as often that it is at work
_PENDING: Final = 10_000  # messages that wait for their next try, all workers together


def consumer_of(durable: str, subject: str) -> ConsumerConfig:
    """Return the settings of the consumer that a worker makes if there is none."""
    return ConsumerConfig(
        durable_name=durable,
        filter_subject=subject,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=ACK_WAIT,
        max_deliver=-1,
        max_ack_pending=_PENDING,
    )


def losses(stream: StreamConfig, consumer: ConsumerConfig | None) -> Iterator[tuple[str, str]]:
    """Yield each setting that loses messages, and its fix."""
    if is_queue(stream):
        yield from queue_losses(stream)
    elif stream.storage == StorageType.MEMORY:
        yield "the stream is in memory, so a restart loses it", "make it with storage=file"
    if consumer is None:
        return
    if consumer.ack_policy != AckPolicy.EXPLICIT:
        yield "the consumer does not acknowledge each message", "make it with ack_policy=explicit"
    if (consumer.max_deliver or -1) > 0:
        yield (
            f"JetStream drops a message after {consumer.max_deliver} deliveries, also busy ones (max_deliver)",
            "set max_deliver to -1: after max_attempts= a message goes to the dead letters",
        )
    if consumer.inactive_threshold:
        yield (
            "JetStream forgets the consumer when no worker is there (inactive_threshold)",
            "make it without inactive_threshold",
        )
    if consumer.headers_only:
        yield "the consumer gives headers only", "make it without headers_only"
    if consumer.mem_storage:
        yield "the consumer is in memory, so a restart forgets what is handled", "make it without mem_storage"


def risks(stream: StreamConfig) -> Iterator[str]:
    """Yield what can lose messages, but does not have to."""
    if not is_queue(stream):
        if stream.max_age:
            yield f"a message that is not handled within {stream.max_age:g} s is lost (max_age)"
        if is_limited(stream):
            yield "the stream drops its oldest messages when it is full, also those that are not handled yet"


def is_queue(stream: StreamConfig) -> bool:
    """Return whether a stream keeps messages only until they are handled. nats-py gives its kind as text."""
    return stream.retention not in (None, RetentionPolicy.LIMITS)  # a tuple: text is equal, but has another hash


def unfit(consumer: ConsumerConfig, subject: str) -> str | None:
    """Return why a consumer that is there cannot serve a worker for ``subject``, or None."""
    if consumer.deliver_subject:
        return "it pushes messages, and a worker pulls them"
    reads = consumer.filter_subjects or [consumer.filter_subject or ">"]
    return None if reads == [subject] else f"it reads {', '.join(reads)}, and this worker {subject}"


def takes(pattern: str, subject: str) -> bool:
    """Return whether a subject with wildcards takes a subject without."""
    return re.fullmatch(re.escape(pattern).replace(r"\*", r"[^.]+").replace(">", ".+"), subject) is not None
