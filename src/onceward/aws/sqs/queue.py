"""A client of one SQS queue, over our own wire; and the settings of a queue."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from onceward.aws.sqs.address import LOCATE, SQS, address_of
from onceward.aws.sqs.message import ENTRIES, LARGEST, Attribute, Message, Outgoing, entry_of, read_message
from onceward.consumers.broker import BrokerError
from onceward.core.arguments import check_type
from onceward.core.clock import boottime
from onceward.core.drivers import Steps, drive, drive_async
from onceward.core.retries import jittered
from onceward.errors import StoreError
from onceward.wire.calls import FIXES, PASSING, Call, Document, ServiceAnswer, code_of, message_of, passes, short
from onceward.wire.endpoints import from_environment
from onceward.wire.wires import opened

__all__ = ["Attribute", "Message", "Outgoing", "Queue", "QueueError"]

LONGEST_WAIT: Final = 20.0  # seconds of a long poll
LONGEST_HOLD: Final = 43200.0  # seconds from its receipt that a message can stay invisible
_PAUSES: Final = (0.1, 0.2, 0.4, 0.8, 1.6)  # seconds before a request is made again
_UNREACHED: Final = ". Check the network, the region and AWS_ENDPOINT_URL"
_FIXES: Final = {
    **FIXES,
    "AccessDenied": "allow {action} on the queue in the IAM policy of these credentials",
    "QueueDoesNotExist": "there is no such queue in this region: check its name, its account and the region",
    "ReceiptHandleIsInvalid": "the receipt has expired, or is another queue's: unless the message is deleted already, it is "
    "delivered again",
}


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


class QueueError(BrokerError):
    """The queue refused a request, or gave no answer.

    Cause: No such queue, no permission, a receipt that has expired, or no network.

    Fix: Look at ``code``. If ``transient`` is true, try again.

    Attributes:
        code: the service's short code, such as ``ReceiptHandleIsInvalid``; "" if there was no answer.
        transient: whether a retry of the same request can succeed.
        unsure: whether the request may have taken effect, as after a broken connection.
    """

    def __init__(self, message: str, *, code: str = "", transient: bool = False, unsure: bool = False) -> None:
        super().__init__(message, gone=code == "QueueDoesNotExist")
        self.code = code
        self.transient = transient
        self.unsure = unsure


Tries = Iterator[float]  # the pauses left for one call, over all its requests


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
        self._address = address = address_of(queue, region)
        self.name = address.name
        self.fifo = address.fifo
        self._url = address.url
        url = endpoint or from_environment("sqs") or address.endpoint
        self._wires = opened(address.region, timeout=timeout, sqs=url)

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
        return drive(self._receive(count, wait, visibility), self)

    def delete_many(self, receipts: Sequence[str]) -> list[QueueError | None]:
        """Delete messages by their receipts, ten with one request.

        Returns:
            For each receipt None, or the error, if its message was not deleted. A code ReceiptHandleIsInvalid, or
            InvalidParameterValue in a FIFO queue, says that the receipt has expired: the message is delivered again.
        """
        return drive(self._delete_many(receipts), self)

    async def delete_many_async(self, receipts: Sequence[str]) -> list[QueueError | None]:
        """As :meth:`delete_many`, awaiting it."""
        return await drive_async(self._delete_many(receipts), self)

    def change_many(self, holds: Sequence[tuple[str, float]]) -> list[QueueError | None]:
        """Make messages invisible for some seconds from now. One request takes ten messages.

        Args:
            holds: pairs of receipt and seconds, up to 43,200, rounded up. 0 gives the message back at once.

        Returns:
            For each receipt None, or the error, as for :meth:`delete_many`.
        """
        return drive(self._change_many(holds), self)

    def send(self, message: Outgoing) -> str:
        """Send a message and return its id.

        A FIFO queue detects a repetition by its deduplication id, so a send there is retried like any request. On a
        standard queue it is retried only after a refusal, because without an answer the message may have been sent. One
        case can still send it twice: if an idle connection breaks during the request, the request is repeated.

        Raises:
            QueueError: it was refused; or, if the error is ``unsure``, it may have been sent.
            ValueError: SQS cannot take it; nothing was sent.
        """
        return drive(self._send(message), self)

    def attributes(self) -> dict[str, str]:
        """Return all attributes of the queue, such as ``VisibilityTimeout``, as the service writes them."""
        return drive(self._attributes(), self)

    async def attributes_async(self) -> dict[str, str]:
        """As :meth:`attributes`, awaiting it."""
        return await drive_async(self._attributes(), self)

    def close(self) -> None:
        """Close idle connections; the next use opens new ones."""
        self._wires.close()

    # --- the requests, as steps for the two drivers -----------------------------------------------------------------------

    def exchange(self, request: object) -> object:
        """Send a request of these steps."""
        return self._wires.ask(cast("Call", request))

    async def exchange_async(self, request: object) -> object:
        """As :meth:`exchange`, awaiting it."""
        return await self._wires.ask_async(cast("Call", request))

    def _receive(self, count: int, wait: float, visibility: float | None) -> Steps[list[Message]]:
        """Ask for messages. A retry waits only for the rest of the wait."""
        if not 1 <= count <= 10:
            raise ValueError(f"count={count!r}: give 1 to 10")
        if not 0 <= wait <= LONGEST_WAIT:
            raise ValueError(f"wait={wait!r}: give 0 to 20 seconds")
        body: dict[str, object] = {
            "MaxNumberOfMessages": count,
            "MessageSystemAttributeNames": ["All"],
            "MessageAttributeNames": ["All"],
        }
        if visibility is not None:
            body["VisibilityTimeout"] = _whole(visibility)
        if self._address.fifo:  # a retry with it gets the messages of a lost answer (SQS API Reference, ReceiveMessage)
            body["ReceiveRequestAttemptId"] = os.urandom(16).hex()
        answer = yield from self._ask("ReceiveMessage", body, wait=wait)
        return [read_message(one) for one in answer.get("Messages") or []]

    def _delete_many(self, receipts: Iterable[str]) -> Steps[list[QueueError | None]]:
        """Delete messages."""
        return (yield from self._batch("DeleteMessageBatch", [{"ReceiptHandle": one} for one in receipts]))

    def _change_many(self, holds: Iterable[tuple[str, float]]) -> Steps[list[QueueError | None]]:
        """Change the visibility of messages."""
        entries = [{"ReceiptHandle": receipt, "VisibilityTimeout": _whole(seconds)} for receipt, seconds in holds]
        return (yield from self._batch("ChangeMessageVisibilityBatch", entries))

    def _send(self, message: Outgoing) -> Steps[str]:
        """Send one message."""
        return cast("str", (yield from self._ask("SendMessage", entry_of(message)))["MessageId"])

    def _attributes(self) -> Steps[dict[str, str]]:
        """Ask for all attributes of the queue."""
        return cast(
            "dict[str, str]", (yield from self._ask("GetQueueAttributes", {"AttributeNames": ["All"]}))["Attributes"]
        )

    def _batch(self, action: str, entries: Sequence[Document]) -> Steps[list[QueueError | None]]:
        """Make a request for every ten entries. Return for each its error, or None."""
        unmentioned = self._error(action, ": the answer does not say what became of this message", "", transient=True)
        unmentioned.unsure = True
        results: list[QueueError | None] = [unmentioned] * len(entries)
        tries, todo = iter(_PAUSES), [*range(len(entries))]
        while todo:
            part, todo = todo[:ENTRIES], todo[ENTRIES:]
            try:
                body = {"Entries": [{"Id": str(number), **entries[number]} for number in part]}
                answer = yield from self._ask(action, body, tries)
            except QueueError as error:
                for number in part:
                    results[number] = error
                continue
            for one in answer.get("Successful") or []:
                results[int(one["Id"])] = None
            for one in answer.get("Failed") or []:
                code = short(one["Code"])
                passing = not one.get("SenderFault", True) or code in PASSING
                results[int(one["Id"])] = self._refusal(action, code, one.get("Message") or "", transient=passing)
            again = [number for number in part if (failed := results[number]) is not None and failed.transient]
            if again and (pause := next(tries, None)) is not None:
                yield jittered(pause)
                todo = again + todo
        return results

    def _ask(
        self, action: str, body: Document, tries: Tries | None = None, wait: float | None = None
    ) -> Steps[Mapping[str, Any]]:
        """Make a request until it is answered. The service may ``wait`` so many seconds, over all tries."""
        tries = tries or iter(_PAUSES)
        if action != LOCATE:
            if self._url is None:
                self._url = (yield from self._ask(LOCATE, self._address.owned, tries))["QueueUrl"]
            body = {"QueueUrl": self._url, **body}
        end, rest = boottime() + (wait or 0.0), 0
        while True:
            if wait is not None:
                rest = max(0, int(end - boottime() + 0.01))  # time that has just passed must not cost a whole second
                body = {**body, "WaitTimeSeconds": rest}
            try:
                answer: ServiceAnswer = yield Call(SQS, action, body, rest)
            except StoreError as error:
                advice = _UNREACHED if isinstance(error.__cause__, OSError) else ""
                failed = QueueError(f"queue {self._address.name}: {error}{advice}", transient=error.transient)
                failed.unsure, failed.__cause__ = error.transient, error
            else:
                if answer.status == 200:
                    return cast("Mapping[str, Any]", answer.body)
                failed = self._refusal(action, code_of(answer), message_of(answer), transient=passes(answer))
                failed.unsure = answer.status >= 500
            # A standard queue gets a message again only if it certainly has not taken it.
            repeatable = self._address.fifo or action != "SendMessage" or not failed.unsure
            pause = next(tries, None) if failed.transient and repeatable else None
            if pause is None:
                raise failed
            yield jittered(pause)

    def _refusal(self, action: str, code: str, message: str, *, transient: bool) -> QueueError:
        # A FIFO queue has no separate code for an expired receipt.
        reason = "ReceiptHandleIsInvalid" if "receipt handle has expired" in message else code
        fix = "" if transient else _FIXES.get(reason, "")
        advice = fix and f": {fix.format(action='sqs:' + action.removesuffix('Batch'))}"
        return self._error(action, f" was refused, {code} ({message}){advice}", code, transient=transient)

    def _error(self, action: str, what: str, code: str, *, transient: bool) -> QueueError:
        return QueueError(f"queue {self._address.name}: sqs:{action}{what}", code=code, transient=transient)


def _whole(seconds: float) -> int:
    """Return a time to stay invisible in whole seconds, as the service counts."""
    if not 0 <= seconds <= LONGEST_HOLD:
        raise ValueError(f"a message can stay invisible for 0 to {LONGEST_HOLD:.0f} seconds, not for {seconds!r}")
    return math.ceil(seconds)
