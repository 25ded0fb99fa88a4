"""A client of one SQS queue, over our own wire; and the settings of a queue."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from onceward.aws.sqs.message import LARGEST, Attribute, Message, Outgoing
from onceward.aws.sqs.queue_steps import LONGEST_WAIT, QueueError, QueueSteps, address_of
from onceward.core.arguments import check_type
from onceward.core.drivers import drive, drive_async
from onceward.wire.endpoints import from_environment
from onceward.wire.wires import opened


class QueueSettings(NamedTuple):
    """The settings of a queue (SQS API Reference, SetQueueAttributes); all times are seconds."""

    name: str
    arn: str
    fifo: bool = False  # whether it is a FIFO queue
    visibility: int = 30  # for which a received message is invisible
    retention: int = 345600  # after which a message is dropped
    delay: int = 0  # before a message can be received
    dead_letters: str | None = None  # the ARN of its dead-letter queue; None if it has none
    receives: int = 0  # after how many receives a message goes there; 0 if there is no such queue
    allows: Mapping[str, object] = {}  # the RedriveAllowPolicy; empty if any queue may send its dead letters here
    largest: int = LARGEST  # the most bytes of a message

    @classmethod
    def read(cls, attributes: Mapping[str, str]) -> "QueueSettings":
        """Return the settings in the attributes of a queue."""
        arn = attributes["QueueArn"]
        policy = json.loads(attributes.get("RedrivePolicy") or "{}")
        return cls(
            name=arn.rpartition(":")[2],
            arn=arn,
            fifo=attributes.get("FifoQueue") == "true",
            visibility=int(attributes["VisibilityTimeout"]),
            retention=int(attributes["MessageRetentionPeriod"]),
            delay=int(attributes.get("DelaySeconds", 0)),
            dead_letters=policy.get("deadLetterTargetArn"),
            receives=int(policy.get("maxReceiveCount", 0)),  # some tools write it as text
            allows=json.loads(attributes.get("RedriveAllowPolicy") or "{}"),
            largest=int(attributes.get("MaximumMessageSize", LARGEST)),
        )


__all__ = ["Attribute", "Message", "Outgoing", "Queue", "QueueError"]


class Queue:
    """One queue. Any number of threads and event loops can use it; nothing is sent before its first use.

    Transient errors are retried up to five times, with pauses that double from 0.1 to 1.6 seconds. Then a :class:`QueueError` is
    raised.

    Requests go to the first of these that is set: ``endpoint``, AWS_ENDPOINT_URL_SQS, AWS_ENDPOINT_URL, the host of the
    queue's URL, the region's own endpoint. So a test server's URL never reaches AWS.

    Args:
        queue: its URL, ARN or name. For an ARN or a name, one request gets the URL.
        region: by default that of the URL or ARN, else AWS_REGION, AWS_DEFAULT_REGION or the profile's.
        endpoint: a URL instead of the region's own, as for a test server.
        timeout: seconds for one try of one request, without the wait for messages.

    Attributes:
        name: the queue's name.
        fifo: whether it is a FIFO queue.

    Raises:
        ValueError: it is not a queue's name, ARN or URL, the region is not the queue's, or the endpoint is not a URL.
    """

    def __init__(
        self, queue: str, *, region: str | None = None, endpoint: str | None = None, timeout: float = 5.0
    ) -> None:
        if not 0 < timeout < math.inf:
            raise ValueError(f"timeout={timeout!r}: give a positive number of seconds")
        check_type("Queue(queue)", queue, str, "its name, URL or ARN")
        address = address_of(queue, region)
        self.name = address.name
        self.fifo = address.fifo
        url = endpoint or from_environment("sqs") or address.endpoint
        self._wires = opened(address.region, timeout=timeout, sqs=url)
        self._steps = QueueSteps(address, self._wires)

    def receive(self, count: int = 10, wait: float = LONGEST_WAIT, visibility: float | None = None) -> list[Message]:
        """Receive messages, and make them invisible to others. All methods send requests, and raise :class:`QueueError`.

        You cannot end it early. It returns within the wait, or some seconds later if the service has trouble.

        Args:
            count: how many at most, 1 to 10.
            wait: seconds to wait for the first one, up to 20; fractions are cut off, as the service counts whole seconds.
            visibility: seconds for which they are invisible, up to 43,200; None is the queue's own.

        Returns:
            The messages, or none.
        """
        return drive(self._steps.receive(count, wait, visibility), self._steps)

    def delete_many(self, receipts: Sequence[str]) -> list[QueueError | None]:
        """Delete messages by their receipts, ten with one request.

        Returns:
            For each receipt None, or the error, if its message was not deleted. A code ReceiptHandleIsInvalid, or
            InvalidParameterValue in a FIFO queue, says that the receipt has expired: the message is delivered again.
        """
        return drive(self._steps.delete_many(receipts), self._steps)

    async def delete_many_async(self, receipts: Sequence[str]) -> list[QueueError | None]:
        """As :meth:`delete_many`, awaiting it."""
        return await drive_async(self._steps.delete_many(receipts), self._steps)

    def change_many(self, holds: Sequence[tuple[str, float]]) -> list[QueueError | None]:
        """Make messages invisible for some seconds from now. One request takes ten messages.

        Args:
            holds: pairs of receipt and seconds, up to 43,200, rounded up. 0 gives the message back at once.

        Returns:
            For each receipt None, or the error, as for :meth:`delete_many`.
        """
        return drive(self._steps.change_many(holds), self._steps)

    def send(self, message: Outgoing) -> str:
        """Send a message and return its id.

        A FIFO queue detects a repetition by its deduplication id, so a send there is retried like any request. On a
        standard queue it is retried only after a refusal, because without an answer the message may have been sent. One
        case can still send it twice: if an idle connection breaks during the request, the request is repeated.

        Raises:
            QueueError: it was refused; or, if the error is ``unsure``, it may have been sent.
            ValueError: SQS cannot take it; nothing was sent.
        """
        return drive(self._steps.send(message), self._steps)

    def attributes(self) -> dict[str, str]:
        """Return all attributes of the queue, such as ``VisibilityTimeout``, as the service writes them."""
        return drive(self._steps.attributes(), self._steps)

    async def attributes_async(self) -> dict[str, str]:
        """As :meth:`attributes`, awaiting it."""
        return await drive_async(self._steps.attributes(), self._steps)

    def close(self) -> None:
        """Close idle connections; the next use opens new ones."""
        self._wires.close()
