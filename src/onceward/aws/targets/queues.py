"""SQS queues and SNS topics as targets, standard and FIFO."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from onceward.aws.events import KEY_ATTRIBUTE
from onceward.aws.sqs.address import LOCATE, SQS, address_of
from onceward.aws.sqs.message import ENTRIES, LARGEST, MOST_ATTRIBUTES, TOGETHER, Outgoing, entry_of, size_of
from onceward.aws.targets.sending import BatchTarget, options_of
from onceward.core.urls import shown_url
from onceward.errors import StoreError
from onceward.outbox.targets import OutboxMessage, refuse_options
from onceward.wire.calls import QUERY, Call, Document, Service, ServiceAnswer, code_of, message_of, short

# The codes that speak of a message itself: SQS API Reference, the errors of SendMessage and SendMessageBatch; SNS API Reference, those
# of Publish and PublishBatch; "Common Errors" in both.
_REFUSED: Final = frozenset(
    {
        "BatchRequestTooLong",
        "InvalidAttributeName",
        "InvalidAttributeValue",
        "InvalidMessageContents",
        "InvalidParameter",
        "InvalidParameterCombination",
        "InvalidParameterValue",
        "MissingParameter",
        "ParameterValueInvalid",
        "Validation",
        "ValidationError",
    }
)
_GROUP: Final = re.compile("[!-~]{1,128}")  # as below
_LONGEST_DELAY: Final = 900  # seconds (SQS API Reference, SendMessage)


class _MessageTarget(BatchTarget):
    """A queue or a topic. A message's key is its attribute ``onceward-key``, and its deduplication id under FIFO."""

    what, batch, largest, together = "message", ENTRIES, LARGEST, TOGETHER
    refusals = _REFUSED
    name: str

    def size(self, message: OutboxMessage) -> int:
        """See :class:`BatchTarget`."""
        return size_of(self.entry(message))

    def entry(self, message: OutboxMessage) -> dict[str, object]:
        """Return the parameters of SQS's SendMessage for a message; raises ValueError if the target can never take it."""
        headers, group, delay, fifo = message.headers, message.group, message.delay, self.name.endswith(".fifo")
        if KEY_ATTRIBUTE in headers:
            raise ValueError(f"headers: onceward itself writes {KEY_ATTRIBUTE}; leave it out")
        if len(headers) >= MOST_ATTRIBUTES:
            raise ValueError(
                f"headers: {len(headers) + 1} with those of onceward, and {self.service.title} takes {MOST_ATTRIBUTES}; put some of "
                "yours into the message"
            )
        if fifo and group is None:
            raise ValueError(f"{self.where} is FIFO: give group=, the message group within which it keeps the order")
        if group is not None and not _GROUP.fullmatch(group):
            raise ValueError(
                f"group={group!r}: give up to 128 letters, digits and punctuation of ASCII, without spaces"
            )
        if fifo:
            refuse_options(f"{self.where}: a FIFO queue", message, "delay")
        if delay is not None and not 0 <= delay <= _LONGEST_DELAY:
            raise ValueError(f"delay={delay!r}: give seconds from 0 to {_LONGEST_DELAY}")
        attributes, dedup = {**headers, KEY_ATTRIBUTE: message.key}, message.key if fifo else None
        return entry_of(Outgoing(message.body, attributes, group, dedup, None if delay is None else math.ceil(delay)))


class SqsTarget(_MessageTarget):
    """A queue. A message's key is its attribute ``onceward-key``, and its deduplication id in a FIFO queue.

    Its headers are further attributes. SQS takes ten, and onceward itself writes three, so a handler can give seven. In a FIFO
    queue, a repetition that comes within five minutes is dropped by the queue itself.

    Args:
        address: ``sqs:`` and the queue's name, URL or ARN; then ``?region=REGION`` if it has no region and is not in that of the
            environment.

    Raises:
        ValueError: the address is not valid.
    """

    service, action = SQS, "SendMessageBatch"

    def __init__(self, address: str) -> None:
        place, options = options_of(address, {"region"})
        self._address = queue = address_of(place, options.get("region"))
        self._url, self.name = queue.url, queue.name
        super().__init__(queue.name, queue.region, queue.endpoint)

    def body(self, messages: Sequence[OutboxMessage]) -> Document:
        """See :class:`BatchTarget`."""
        if self._url is None:
            answer = self.wires.ask(Call(SQS, LOCATE, self._address.owned))
            if answer.status != 200:
                raise StoreError(f"sqs:{LOCATE} was refused, {code_of(answer)} ({message_of(answer)})")
            self._url = answer.body["QueueUrl"]
        entries = [{"Id": str(number), **self.entry(message)} for number, message in enumerate(messages)]
        return {"QueueUrl": self._url, "Entries": entries}

    def codes(self, answer: ServiceAnswer) -> Mapping[str, tuple[str | None, str]]:
        """See :class:`BatchTarget`."""
        failed = {one["Id"]: (short(one["Code"]), one.get("Message") or "") for one in answer.body.get("Failed") or ()}
        return {one["Id"]: (None, "") for one in answer.body.get("Successful") or ()} | failed


_ARN: Final = re.compile(r"arn:[a-z-]+:sns:([a-z0-9-]+):[0-9]*:[A-Za-z0-9_-]{1,256}(?:\.fifo)?")


class SnsTarget(_MessageTarget):
    """A topic. A message's key is its attribute ``onceward-key``, and its deduplication id in a FIFO topic.

    Its headers are further attributes. onceward itself writes three, and a handler can give seven. A queue that is subscribed with
    raw delivery gets no message with more than ten (SNS Developer Guide, "Amazon SNS message attributes").

    Args:
        address: ``sns:`` and the topic's ARN.

    Raises:
        ValueError: the address is not valid.
    """

    # SNS API Reference, PublishBatch. A topic takes messages of 256 KiB, or of what its MaximumMessageSize says, up to 1 MiB.
    service, action = Service("SNS", "sns", "2010-03-31", QUERY), "PublishBatch"

    def __init__(self, address: str) -> None:
        arn = address.partition(":")[2]
        match = _ARN.fullmatch(arn)
        if match is None:
            raise ValueError(
                f"{shown_url(address)!r} is not a topic: give its ARN, as in sns:arn:aws:sns:eu-west-1:123456789012:orders"
            )
        self.name = arn
        super().__init__(arn, match[1])

    def entry(self, message: OutboxMessage) -> dict[str, object]:
        """See :class:`_MessageTarget`."""
        refuse_options(f"{self.where}: SNS", message, "delay")
        return super().entry(message)

    def body(self, messages: Sequence[OutboxMessage]) -> Document:
        """See :class:`BatchTarget`."""
        fields: dict[str, object] = {"TopicArn": self.where}
        for place, message in enumerate(messages):
            entry: dict[str, Any] = self.entry(message)
            named = {"Id": str(place), "Message": entry.pop("MessageBody")}
            for number, (name, attribute) in enumerate(entry.pop("MessageAttributes").items(), 1):
                start = f"MessageAttributes.entry.{number}."
                named |= {f"{start}Name": name} | {f"{start}Value.{part}": text for part, text in attribute.items()}
            start = f"PublishBatchRequestEntries.member.{place + 1}."
            fields |= {f"{start}{name}": value for name, value in (named | entry).items()}
        return fields

    def codes(self, answer: ServiceAnswer) -> Mapping[str, tuple[str | None, str]]:
        """See :class:`BatchTarget`."""
        from xml.etree import ElementTree as ET

        try:
            root = ET.fromstring(answer.body)  # noqa: S314  # of SNS, over a connection whose certificate is checked
        except ET.ParseError:
            return {}
        results: dict[str, tuple[str | None, str]] = {}
        for member in root.iter():
            fields = {part.tag.rpartition("}")[2]: part.text or "" for part in member}
            if "Id" in fields and ("MessageId" in fields or "Code" in fields):
                code = short(fields["Code"]) if "Code" in fields else None
                results[fields["Id"]] = code, fields.get("Message", "")
        return results
