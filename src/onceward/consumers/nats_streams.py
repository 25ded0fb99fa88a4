"""Streams of JetStream: what they and their consumers lose, and the dead letters: their stream, their headers, and how one is stored."""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DiscardPolicy, PubAck, RetentionPolicy, StorageType, StreamConfig
from nats.js.client import JetStreamContext
from nats.js.errors import NotFoundError

from onceward.consumers.broker import check_settings
from onceward.consumers.dead_letters import OURS, REASON
from onceward.observe.logs import logger

ID_HEADER: Final = "Nats-Msg-Id"
_SERVERS: Final = "nats-"  # headers that the server acts on; a dead letter must not have those of its message
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_FRAME: Final = 12  # bytes of "NATS/1.0" and of two ends of lines
_EACH: Final = 4  # bytes of a colon, a space and the end of a line


def name_for(text: str) -> str:
    """Return the name of a consumer or a stream for this text, such as a subject: without dots and spaces."""
    return _NOT_IN_A_NAME.sub("-", text)


def queue_losses(stream: StreamConfig) -> Iterator[str]:
    """Yield each setting of a stream that loses messages before they are handled, and its fix."""
    if stream.storage == StorageType.MEMORY:
        yield "the stream is in memory, so a restart loses it: make it with storage=file"
    if stream.max_age:
        yield "the stream drops messages that wait too long (max_age): make it without max_age"
    if is_limited(stream):
        yield (
            "the stream drops its oldest messages when it is full: "
            "make it with discard=new, and discard_new_per_subject for max_msgs_per_subject"
        )


def is_limited(stream: StreamConfig) -> bool:
    """Return whether a stream makes room by dropping its oldest messages."""
    refuses = stream.discard == DiscardPolicy.NEW
    whole = any((limit or -1) > 0 for limit in (stream.max_msgs, stream.max_bytes))
    one = (stream.max_msgs_per_subject or -1) > 0
    return (whole and not refuses) or (one and not (refuses and stream.discard_new_per_subject))


async def prepare_letters(jetstream: JetStreamContext, subject: str, like: StreamConfig) -> str:
    """Return the stream that keeps the dead letters of a subject. Make it as durable as ``like`` if there is none.

    Raises:
        ValueError: the stream that takes the subject would lose them.
    """
    try:
        name = await jetstream.find_stream_name_by_subject(subject)
    except NotFoundError:
        name = name_for(subject)
        await jetstream.add_stream(
            StreamConfig(name=name, subjects=[subject], storage=like.storage, num_replicas=like.num_replicas)
        )
    config = (await jetstream.stream_info(name)).config
    other = ". Or give dead= a subject that no stream takes, and onceward makes a stream for it"
    check_settings(f"stream {name} of the dead letters {subject}", _letter_losses(config), advice=other)
    if (config.num_replicas or 1) < (like.num_replicas or 1):
        logger().warning("stream %s has fewer replicas than %s: a lost node loses dead letters", name, like.name)
    return name


def _letter_losses(stream: StreamConfig) -> Iterator[str]:
    yield from queue_losses(stream)
    if stream.retention == RetentionPolicy.INTEREST:
        yield "it forgets what no consumer waits for (retention=interest): make it with retention=limits"
    if stream.no_ack:
        yield "it does not say what it has stored (no_ack): make it without no_ack"


async def store_letter(
    jetstream: JetStreamContext,
    send: Callable[[dict[str, str]], Awaitable[PubAck]],
    message: Msg,
    more: Mapping[str, str],
    dead: str,
    room: int,
) -> None:
    """Let ``send`` publish the dead letter of a message, and return when its stream has it.

    JetStream drops a second message of one id, also if the first has been deleted since. So the first is looked for.

    Args:
        jetstream: of the stream.
        send: publishes the message's payload with these headers.
        message: whose own headers the letter keeps.
        more: further headers.
        dead: the subject of the dead letters.
        room: bytes that the headers may take.

    Raises:
        ValueError: they do not fit.
    """
    there = message.metadata
    # It tells the letter from another consumer's, and from one of a stream that was made again.
    micros = round(there.timestamp.timestamp() * 1e6)
    name = f"{dead}:{there.stream}/{there.sequence.stream}/{micros}/{there.consumer}"
    same = {
        header: text
        for header, text in (message.headers or {}).items()
        if not (header.lower().startswith(_SERVERS) or header.lower() in OURS)
    }
    headers = fitting({**same, **more, ID_HEADER: name}, room)
    answer = await send(headers)
    if not answer.duplicate:
        return
    try:
        first = await jetstream.get_msg(answer.stream, answer.seq)
        if (first.headers or {}).get(ID_HEADER) == name:
            return
    except NotFoundError:
        pass
    await send({header: text for header, text in headers.items() if header != ID_HEADER})


def fitting(headers: Mapping[str, str], room: int) -> dict[str, str]:
    """Return headers that take up to ``room`` bytes; the reason of a dead letter is shortened if it must be.

    The server closes the connection of a client that sends more than its ``max_payload``, with headers. The client counts the
    payload alone. So one such message would end a consumer.

    Raises:
        ValueError: they do not fit.
    """
    short = dict(headers)
    if (over := _size(short) - room) > 0 and REASON in short:
        reason = short[REASON].encode()
        short[REASON] = reason[: max(0, len(reason) - over)].decode(errors="ignore")
        over = _size(short) - room
    if over > 0:
        raise ValueError(
            f"the message and its headers have {over} bytes more than the server's max_payload: raise that"
        )
    return short


def _size(headers: Mapping[str, str]) -> int:
    return _FRAME + sum(len(name.encode()) + len(text.encode()) + _EACH for name, text in headers.items())


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


def losses(stream: StreamConfig, consumer: ConsumerConfig | None) -> Iterator[str]:
    """Yield each setting that loses messages, and its fix."""
    if is_queue(stream):
        yield from queue_losses(stream)
    elif stream.storage == StorageType.MEMORY:
        yield "the stream is in memory, so a restart loses it: make it with storage=file"
    if consumer is not None:
        yield from consumer_losses(consumer)


def consumer_losses(consumer: ConsumerConfig) -> Iterator[str]:
    """Yield each setting of a consumer that loses messages, and its fix."""
    if consumer.ack_policy not in {None, AckPolicy.EXPLICIT}:
        yield "the consumer does not acknowledge each message: make it with ack_policy=explicit"
    if (consumer.max_deliver or -1) > 0:
        yield (
            f"JetStream drops a message after {consumer.max_deliver} deliveries, also busy ones (max_deliver): "
            "set max_deliver to -1: after max_attempts= a message goes to the dead letters"
        )
    if consumer.inactive_threshold:
        yield (
            "JetStream forgets the consumer when no worker is there (inactive_threshold): "
            "make it without inactive_threshold"
        )
    if consumer.headers_only:
        yield "the consumer gives headers only: make it without headers_only"
    if consumer.mem_storage:
        yield "the consumer is in memory, so a restart forgets what is handled: make it without mem_storage"


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
