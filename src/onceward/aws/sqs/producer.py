"""Sending messages to SQS once: as to any target of the outbox (``consumers/sending.py``), by the queue's name."""

from typing import Unpack

from onceward.consumers import sending
from onceward.consumers.sending import TargetOptions
from onceward.once import Once


def send(once: Once, queue: str, message: object, *, key: object, **options: Unpack[TargetOptions]) -> str:
    """Send a message to an SQS queue once for ``key``, and return its idempotency key, also to duplicates.

    If the answer is lost, nobody knows whether the message was sent. The send then raises and gives the key back, so that the
    retry sends again. Every message has the same key, derived from ``key``, in its attribute ``onceward-key``. onceward's
    consumers use it, so a message that was sent twice takes effect once. It is also the deduplication id in a FIFO queue, which
    drops the second message itself within five minutes.

    Args:
        once: the ledger that remembers what was sent.
        queue: its URL, ARN or name: always the same one of these, because the key in the ledger has it.
        message: text, which is sent unchanged; anything else is sent as JSON (what msgspec encodes, or a pydantic model).
        key: as for :meth:`Once.run`; unique among the messages to this queue.
        **options: see :class:`onceward.consumers.sending.TargetOptions`. ``headers`` are message attributes, up to seven. A FIFO
            queue needs a ``group``, and takes no ``delay``, which is up to 900 seconds.

    Raises:
        MessageRefused, MessageNotSent: it was refused; or it may have been sent, see above.
        Busy, Parked, KeyMissing, StoreError: it was not sent.
        ResultNotRecorded: it was sent.
        ValueError, TypeError: SQS cannot take it, or an option is not valid, such as ``on_busy="skip"``, whose result cannot
            say whether it was sent. Nothing was claimed.
    """
    return sending.send(once, f"sqs:{queue}", message, key=key, **options)


async def send_async(once: Once, queue: str, message: object, *, key: object, **options: Unpack[TargetOptions]) -> str:
    """As :func:`send`, for a coroutine."""
    return await sending.send_async(once, f"sqs:{queue}", message, key=key, **options)
