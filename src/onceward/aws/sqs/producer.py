"""Sending messages to SQS once: the claim, the send, and the record of the message id."""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, Unpack, cast

import msgspec

from onceward.aws.events import KEY_ATTRIBUTE
from onceward.aws.sqs.message import MOST_ATTRIBUTES, AttributeValue, Outgoing, entry_of
from onceward.aws.sqs.queue import Queue
from onceward.core.policy import Options
from onceward.keys.ledger_keys import derived_key, ledger_key
from onceward.once import Once, check_once
from onceward.results.values import model_data

if TYPE_CHECKING:
    from onceward.claim.guard import Guard

SEND_NAME: Final = "send"  # the namespace of keys of messages that are sent
_NO_SKIP: Final = "the result of send could not say whether the message was sent"
_LONGEST_DELAY: Final = 900  # seconds (SQS API Reference, SendMessage)


class SendOptions(Options, total=False):
    """The keywords of :func:`send`, besides those of :class:`onceward.Policy`; ``cache`` has no effect here.

    Attributes:
        group: the message group; a FIFO queue needs one.
        attributes: up to nine message attributes: text, numbers or bytes.
        delay: whole seconds before the message can be received, up to 900; not for FIFO queues.
        name: the namespace of the key; default "send". Queues of the same name in several regions or accounts need
            different ones.
    """

    group: str | None
    attributes: Mapping[str, AttributeValue] | None
    delay: int | None
    name: str | None


def send(once: Once, queue: Queue | str, message: object, *, key: object, **options: Unpack[SendOptions]) -> str:
    """Send a message to an SQS queue once for ``key``, and return its message id, also to duplicates.

    If the answer is lost, nobody knows whether the message was sent. The send then raises and gives the key back, so that the
    retry sends again. Every message has the same key, derived from ``key``, in its attribute ``onceward-key``. onceward's
    consumers use it, so a message that was sent twice takes effect once. It is also the deduplication id in a FIFO queue, which
    drops the second message itself within five minutes.

    Args:
        once: the ledger that remembers what was sent.
        queue: a :class:`onceward.aws.Queue`, or a queue's URL, ARN or name.
        message: text, which is sent unchanged; anything else is sent as JSON (what msgspec encodes, or a pydantic model).
        key: as for :meth:`Once.run`; unique among the messages to queues of that name.
        **options: see :class:`SendOptions`.

    Raises:
        QueueError: it was refused; or it may have been sent, see above.
        Busy, Parked, KeyMissing, StoreError: it was not sent.
        ResultNotRecorded: it was sent; the message id is in the error's ``result``.
        ValueError, TypeError: SQS cannot take it, or an option is not valid, such as ``on_busy="skip"``, whose result cannot
            say whether it was sent. Nothing was claimed.
    """
    guard, full, target, outgoing = _sending(once, queue, message, key, **options)
    return cast("str", guard.call(full, None, partial(target.send, *outgoing), (), {}))


async def send_async(
    once: Once, queue: Queue | str, message: object, *, key: object, **options: Unpack[SendOptions]
) -> str:
    """As :func:`send`, for a coroutine."""
    guard, full, target, outgoing = _sending(once, queue, message, key, **options)
    return cast("str", await guard.call_async(full, None, partial(target.send_async, *outgoing), (), {}))


def _sending(
    once: Once,
    queue: Queue | str,
    message: object,
    key: object,
    *,
    group: str | None = None,
    attributes: Mapping[str, AttributeValue] | None = None,
    delay: int | None = None,
    name: str | None = None,
    **options: Unpack[Options],
) -> "tuple[Guard, str, Queue, Outgoing]":
    """Return the guard, the key in the ledger, the queue and the message, after all checks that need no request to SQS."""
    check_once(once, "send({}, 'orders', message, key=...)")
    guard = once.guards.for_keys(name, options, no_skip=_NO_SKIP, default=SEND_NAME)
    target = _queue(queue) if isinstance(queue, str) else queue
    full = ledger_key(guard.name, (target.name, key))
    once_key = derived_key(full, (SEND_NAME,))
    given = dict(attributes or {})
    if KEY_ATTRIBUTE in given:
        raise ValueError(f"attributes: onceward itself writes {KEY_ATTRIBUTE}; leave it out")
    if len(given) >= MOST_ATTRIBUTES:
        raise ValueError(
            f"attributes: {len(given)} are given, and SQS takes {MOST_ATTRIBUTES}, of which {KEY_ATTRIBUTE} is one; put some of them "
            "into the message"
        )
    if target.fifo and group is None:
        raise ValueError(
            f"{target.name} is a FIFO queue: give group=, the message group within which it keeps the order"
        )
    if target.fifo and delay is not None:
        raise ValueError(f"{target.name} is a FIFO queue, which takes no delay= for a single message; leave it out")
    if delay is not None and (type(delay) is not int or not 0 <= delay <= _LONGEST_DELAY):
        raise ValueError(f"delay={delay!r}: give whole seconds from 0 to {_LONGEST_DELAY}")
    dedup = once_key if target.fifo else None
    outgoing = Outgoing(_text(message), {**given, KEY_ATTRIBUTE: once_key}, group, dedup, delay)
    entry_of(outgoing)  # raises if it is not valid, before anything is claimed
    return guard, full, target, outgoing


# A cached queue reuses its connections.
_queue: Callable[[str], Queue] = lru_cache(maxsize=100)(Queue)


def _text(message: object) -> str:
    if isinstance(message, str):
        return message
    if isinstance(message, bytes | bytearray | memoryview):
        raise TypeError("message is bytes, and SQS sends text: decode it, or encode it as base64")

    try:
        return msgspec.json.encode(message, enc_hook=model_data).decode()
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise TypeError(f"message cannot be written as JSON: {error}. Give text, or what msgspec encodes") from error
