"""Sending messages to SQS once: the claim, the send, and the record of the message id."""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, Unpack, cast

from onceward.aws.sqs.message import MOST_ATTRIBUTES, AttributeValue, Outgoing, entry_of, size_of
from onceward.aws.sqs.queue import LARGEST, Queue, build_message
from onceward.core.policy import Options
from onceward.keys.ledger_keys import derived_key, ledger_key
from onceward.observe.observers import Observers
from onceward.once import Once, check_once
from onceward.results.message_entries import body_of

if TYPE_CHECKING:
    from onceward.claim.guard import Guard

SEND_NAME: Final = "send"  # the namespace of keys of messages that are sent
_NO_SKIP: Final = "the result of send could not say whether the message was sent"


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
    guard, full, target, outgoing = _prepare(once, queue, message, key, **options)
    return cast("str", guard.call(full, None, partial(_send_traced, target.send, guard.observers, outgoing), (), {}))


async def send_async(
    once: Once, queue: Queue | str, message: object, *, key: object, **options: Unpack[SendOptions]
) -> str:
    """As :func:`send`, for a coroutine."""
    guard, full, target, outgoing = _prepare(once, queue, message, key, **options)
    return cast(
        "str",
        await guard.call_async(full, None, partial(_send_traced, target.send_async, guard.observers, outgoing), (), {}),
    )


def _send_traced(send: Callable[..., object], observers: Observers, outgoing: Outgoing) -> object:
    """Send a message that carries the current trace in its attributes, as far as there is room."""
    for name, text in observers.headers().items():
        larger = outgoing._replace(attributes={name: text, **(outgoing.attributes or {})})
        if len(larger.attributes or {}) <= MOST_ATTRIBUTES and size_of(entry_of(larger)) <= LARGEST:
            outgoing = larger
    return send(*outgoing)


def _prepare(
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
    if delay is not None and type(delay) is not int:
        raise ValueError(f"delay={delay!r}: give whole seconds")
    # It raises before anything is claimed.
    outgoing = build_message(target, body_of(message), once_key, attributes or {}, group, delay)
    return guard, full, target, outgoing


# A cached queue reuses its connections.
_queue: Callable[[str], Queue] = lru_cache(maxsize=100)(Queue)
