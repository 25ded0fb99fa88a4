"""The requests of a queue's client, as generators for the two drivers (``core/drivers.py``).

They use the service's JSON protocol, ``AmazonSQS`` of 2012-11-05. The public methods are in ``queue.py``.
"""

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from onceward.aws.sqs.message import ENTRIES, Message, Outgoing, entry_of, read_message
from onceward.consumers.broker import BrokerError
from onceward.core.clock import boottime
from onceward.core.drivers import Steps
from onceward.core.retries import jittered
from onceward.errors import StoreError
from onceward.wire.calls import (
    FIXES,
    PASSING,
    Call,
    Document,
    Service,
    ServiceAnswer,
    code_of,
    message_of,
    passes,
    short,
)
from onceward.wire.wires import Wires

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")  # SQS API Reference, CreateQueue
_ARN: Final = re.compile(r"arn:[a-z-]+:sqs:([a-z0-9-]+):([0-9]+):(.+)")
# AWS General Reference, "Amazon SQS endpoints and quotas": the endpoints there are, with FIPS, dual stack and VPC ones.
_REGION: Final = re.compile(r"(?:^|\.)sqs(?:-fips)?\.([a-z]+(?:-[a-z]+)+-[0-9]+)\.")
_OWN: Final = re.compile(r"sqs\.[a-z0-9-]+\.amazonaws\.com(?:\.cn)?")


class Address(NamedTuple):
    """What a queue's name, ARN or URL says."""

    name: str
    url: str | None = None  # None if it must be requested
    account: str | None = None  # of the queue; None is the caller's own
    region: str | None = None  # of the queue; None if it is not in the text
    endpoint: str | None = None  # where requests go by default; None is the region's own endpoint

    @property
    def fifo(self) -> bool:
        """Whether it is a FIFO queue, by its name."""
        return self.name.endswith(".fifo")

    @property
    def owned(self) -> dict[str, object]:
        """The parameters of the request for its URL."""
        owner = {} if self.account is None else {"QueueOwnerAWSAccountId": self.account}
        return {"QueueName": self.name, **owner}


def address_of(queue: str, region: str | None = None) -> Address:
    """Return what a queue's name, ARN or URL says; ``region`` is the caller's.

    Raises:
        ValueError: it is none of these, or it is in another region.
    """
    if "://" in queue:
        address = _of_url(queue)
    elif arn := _ARN.fullmatch(queue):
        address = Address(arn[3], None, arn[2], arn[1])
    else:
        address = Address(queue)
    if not _NAME.fullmatch(address.name):
        raise ValueError(
            f"{queue!r} is not a queue: give its URL, its ARN, or its name (80 letters, digits, '-' and '_')"
        )
    if region and address.region and region != address.region:
        raise ValueError(f"{queue!r} is in {address.region}, and region={region!r}: leave region= out")
    return address._replace(region=region or address.region)


def _of_url(url: str) -> Address:
    try:
        from urllib.parse import urlsplit

        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return Address("")
    name = parts.path.rstrip("/").rpartition("/")[2]
    if parts.scheme not in {"http", "https"} or not host:
        return Address("")
    region = _REGION.search(host)
    endpoint = None if _OWN.fullmatch(host) else f"{parts.scheme}://{parts.netloc}"
    return Address(name, url, None, region and region[1], endpoint)


SQS: Final = Service("SQS", "sqs", "AmazonSQS")
LONGEST_WAIT: Final = 20.0  # seconds of a long poll
LONGEST_HOLD: Final = 43200.0  # seconds from its receipt that a message can stay invisible
_PAUSES: Final = (0.1, 0.2, 0.4, 0.8, 1.6)  # seconds before a request is made again
LOCATE: Final = "GetQueueUrl"
_UNREACHED: Final = ". Check the network, the region and AWS_ENDPOINT_URL"
_FIXES: Final = {
    **FIXES,
    "AccessDenied": "allow {action} on the queue in the IAM policy of these credentials",
    "QueueDoesNotExist": "there is no such queue in this region: check its name, its account and the region",
    "ReceiptHandleIsInvalid": "the receipt has expired, or is another queue's: unless the message is deleted already, it is "
    "delivered again",
}


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


class QueueSteps:
    """The steps of one queue's client, and what drives them."""

    def __init__(self, address: Address, wires: Wires) -> None:
        self._address = address
        self._url = address.url
        self._wires = wires

    def exchange(self, request: object) -> object:
        """Send a call."""
        return self._wires.ask(cast("Call", request))

    async def exchange_async(self, request: object) -> object:
        """As :meth:`exchange`, awaiting it."""
        return await self._wires.ask_async(cast("Call", request))

    def receive(self, count: int, wait: float, visibility: float | None) -> Steps[list[Message]]:
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

    def delete_many(self, receipts: Iterable[str]) -> Steps[list[QueueError | None]]:
        """Delete messages."""
        return (yield from self._batch("DeleteMessageBatch", [{"ReceiptHandle": one} for one in receipts]))

    def change_many(self, holds: Iterable[tuple[str, float]]) -> Steps[list[QueueError | None]]:
        """Change the visibility of messages."""
        entries = [{"ReceiptHandle": receipt, "VisibilityTimeout": _whole(seconds)} for receipt, seconds in holds]
        return (yield from self._batch("ChangeMessageVisibilityBatch", entries))

    def send(self, message: Outgoing) -> Steps[str]:
        """Send one message."""
        return cast("str", (yield from self._ask("SendMessage", entry_of(message)))["MessageId"])

    def attributes(self) -> Steps[dict[str, str]]:
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
