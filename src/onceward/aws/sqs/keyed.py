"""Messages with an idempotency key, as :func:`onceward.aws.send` and the outbox send them."""

import math
import re
from collections.abc import Mapping
from typing import Final

from onceward.aws.events import KEY_ATTRIBUTE
from onceward.aws.sqs.message import MOST_ATTRIBUTES, AttributeValue, Outgoing, entry_of, size_of
from onceward.aws.sqs.queue import Queue
from onceward.aws.sqs.settings import LARGEST

_GROUP: Final = re.compile("[!-~]{1,128}")  # as below
_LONGEST_DELAY: Final = 900  # seconds (SQS API Reference, SendMessage)


def keyed(
    queue: Queue,
    body: str,
    key: str,
    attributes: Mapping[str, AttributeValue],
    group: str | None,
    delay: float | None,
) -> Outgoing:
    """Return a message for ``queue`` whose consumers, if they use onceward, take it once for ``key``.

    The key is its attribute ``onceward-key``, and its deduplication id in a FIFO queue. A ``delay`` in seconds is rounded up.

    Raises:
        ValueError, TypeError: the queue can never take it.
    """
    if KEY_ATTRIBUTE in attributes:
        raise ValueError(f"attributes: onceward itself writes {KEY_ATTRIBUTE}; leave it out")
    if len(attributes) >= MOST_ATTRIBUTES:
        raise ValueError(
            f"attributes: {len(attributes) + 1} with those of onceward, and SQS takes {MOST_ATTRIBUTES}; put some of yours into the "
            "message"
        )
    if queue.fifo and group is None:
        raise ValueError(
            f"{queue.name} is a FIFO queue: give group=, the message group within which it keeps the order"
        )
    check_group(group)
    if queue.fifo and delay is not None:
        raise ValueError(f"{queue.name} is a FIFO queue, which takes no delay= for a single message; leave it out")
    if delay is not None and not 0 <= delay <= _LONGEST_DELAY:
        raise ValueError(f"delay={delay!r}: give seconds from 0 to {_LONGEST_DELAY}")
    whole = None if delay is None else math.ceil(delay)
    message = Outgoing(body, {**attributes, KEY_ATTRIBUTE: key}, group, key if queue.fifo else None, whole)
    size = size_of(entry_of(message))
    if size > LARGEST:
        raise ValueError(f"the message has {size} bytes with its attributes, and SQS takes {LARGEST}")
    return message


def check_group(group: str | None) -> None:
    """Raise ValueError if SQS and SNS accept no such message group."""
    if group is not None and not _GROUP.fullmatch(group):
        raise ValueError(f"group={group!r}: give up to 128 letters, digits and punctuation of ASCII, without spaces")
