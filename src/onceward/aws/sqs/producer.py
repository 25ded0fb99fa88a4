"""Sending messages to SQS once: the claim, the send, and the record of the message id."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import msgspec

from onceward.aws.sqs.message import AttributeValue, Outgoing, entry_of
from onceward.aws.sqs.queue import Queue
from onceward.consumers.delivery import KEY_ATTRIBUTE
from onceward.keys.ledger_keys import derived_key, ledger_key
from onceward.results.values import model_data

if TYPE_CHECKING:
    from onceward.claim.guard import Guard

SEND_NAME: Final = "send"  # the namespace of keys of messages that are sent
_ATTRIBUTES: Final = 10  # of a message, at most (SQS Developer Guide, "Amazon SQS message metadata")
_LONGEST_DELAY: Final = 900  # seconds (SQS API Reference, SendMessage)


class Sending(NamedTuple):
    """A message that can be sent, and the key in the ledger that it is sent under."""

    queue: Queue
    key: str
    message: Outgoing

    def run(self, guard: "Guard") -> str:
        """Send it once; return its id, or that which was recorded."""
        return cast("str", guard.call(self.key, None, self._send, (), {}))

    async def run_async(self, guard: "Guard") -> str:
        """As :meth:`run`, for a coroutine."""
        return cast("str", await guard.call_async(self.key, None, self._send_async, (), {}))

    def _send(self) -> str:
        body, attributes, group, dedup, delay = self.message
        return self.queue.send(body, attributes, group=group, dedup=dedup, delay=delay)

    async def _send_async(self) -> str:
        body, attributes, group, dedup, delay = self.message
        return await self.queue.send_async(body, attributes, group=group, dedup=dedup, delay=delay)


def sending(
    queue: Queue | str,
    message: object,
    *,
    key: object,
    group: str | None,
    attributes: Mapping[str, AttributeValue] | None,
    delay: int | None,
    name: str,
) -> Sending:
    """Return what is to be sent, everything checked that can be without asking SQS. See :meth:`Once.send`."""
    target = _queue(queue) if isinstance(queue, str) else queue
    full = ledger_key(name, (target.name, key))
    once_key = derived_key(full, (SEND_NAME,))
    given = dict(attributes or {})
    if KEY_ATTRIBUTE in given:
        raise ValueError(f"attributes: {KEY_ATTRIBUTE} is what onceward writes itself; leave it out")
    if len(given) >= _ATTRIBUTES:
        raise ValueError(
            f"attributes: {len(given)} are given, and SQS takes {_ATTRIBUTES}, of which {KEY_ATTRIBUTE} is one; put some of them "
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
    entry_of(outgoing)  # raises what is wrong with it, before anything is claimed
    return Sending(target, full, outgoing)


# A queue keeps its connections, which a new one for every message would open anew.
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
