"""SQS queues and SNS topics as targets, standard and FIFO."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from onceward.aws.events import KEY_ATTRIBUTE
from onceward.aws.sqs.message import (
    ENTRIES,
    MOST_ATTRIBUTES,
    REFUSED,
    TOGETHER,
    check_attribute_name,
    check_text,
    entry_of,
    size_of,
)
from onceward.aws.sqs.queue import LARGEST, build_message, check_group
from onceward.aws.sqs.queue_steps import LOCATE, SQS, address_of
from onceward.aws.targets.sending import BatchTarget, options_of
from onceward.core.urls import shown_url
from onceward.errors import StoreError
from onceward.outbox.targets import OutboxMessage, refuse_options
from onceward.wire.calls import QUERY, Call, Document, Service, ServiceAnswer, code_of, message_of, short


class SqsTarget(BatchTarget):
    """A queue. A message's key is its attribute ``onceward-key``, and its deduplication id in a FIFO queue.

    Its headers are further attributes. SQS takes ten, and onceward itself writes three, so a handler can give seven. In a FIFO
    queue, a repetition that comes within five minutes is dropped by the queue itself.

    Args:
        address: ``sqs:`` and the queue's name, URL or ARN; then ``?region=REGION`` if it has no region and is not in that of the
            environment.

    Raises:
        ValueError: the address is not valid.
    """

    service, action, what = SQS, "SendMessageBatch", "message"
    batch, largest, together = ENTRIES, LARGEST, TOGETHER
    refusals = REFUSED

    def __init__(self, address: str) -> None:
        place, options = options_of(address, {"region"})
        self._address = queue = address_of(place, options.get("region"))
        self._url = queue.url
        super().__init__(queue.name, queue.region, queue.endpoint)

    def size(self, message: OutboxMessage) -> int:
        """See :class:`BatchTarget`."""
        return size_of(self._entry(message))

    def body(self, messages: Sequence[OutboxMessage]) -> Document:
        """See :class:`BatchTarget`."""
        if self._url is None:
            answer = self.wires.ask(Call(SQS, LOCATE, self._address.owned))
            if answer.status != 200:
                raise StoreError(f"sqs:{LOCATE} was refused, {code_of(answer)} ({message_of(answer)})")
            self._url = answer.body["QueueUrl"]
        entries = [{"Id": str(number), **self._entry(message)} for number, message in enumerate(messages)]
        return {"QueueUrl": self._url, "Entries": entries}

    def codes(self, answer: ServiceAnswer) -> Mapping[str, tuple[str | None, str]]:
        """See :class:`BatchTarget`."""
        failed = {one["Id"]: (short(one["Code"]), one.get("Message") or "") for one in answer.body.get("Failed") or ()}
        return {one["Id"]: (None, "") for one in answer.body.get("Successful") or ()} | failed

    def _entry(self, message: OutboxMessage) -> dict[str, object]:
        return entry_of(
            build_message(self._address, message.body, message.key, message.headers, message.group, message.delay)
        )


_ARN: Final = re.compile(r"arn:[a-z-]+:sns:([a-z0-9-]+):[0-9]*:[A-Za-z0-9_-]{1,256}(\.fifo)?")


class SnsTarget(BatchTarget):
    """A topic. A message's key is its attribute ``onceward-key``, and its deduplication id in a FIFO topic.

    Its headers are further attributes. onceward itself writes three, and a handler can give seven. A queue that is subscribed with
    raw delivery gets no message with more than ten (SNS Developer Guide, "Amazon SNS message attributes").

    Args:
        address: ``sns:`` and the topic's ARN.

    Raises:
        ValueError: the address is not valid.
    """

    # SNS API Reference, PublishBatch. A topic takes messages of 256 KiB, or of what its MaximumMessageSize says, up to 1 MiB.
    service, action, what = Service("SNS", "sns", "2010-03-31", QUERY), "PublishBatch", "message"
    batch, largest, together = 10, 1024 * 1024, 256 * 1024
    refusals = REFUSED

    def __init__(self, address: str) -> None:
        arn = address.partition(":")[2]
        match = _ARN.fullmatch(arn)
        if match is None:
            raise ValueError(
                f"{shown_url(address)!r} is not a topic: give its ARN, as in sns:arn:aws:sns:eu-west-1:123456789012:orders"
            )
        self._fifo = match[2] is not None
        super().__init__(arn, match[1])

    def check(self, message: OutboxMessage) -> None:
        """Raise ValueError if the topic can never take the message."""
        refuse_options(f"{self.where}: SNS", message, "delay")
        if self._fifo and message.group is None:
            raise ValueError(f"{self.where} is a FIFO topic: give group=, within which it keeps the order")
        check_group(message.group)
        attributes = _attributes(message)
        if len(attributes) > MOST_ATTRIBUTES:
            raise ValueError(f"headers: {len(attributes)} with those of onceward, and SNS passes on {MOST_ATTRIBUTES}")
        check_text(message.body, "the body")
        for name, value in attributes.items():
            check_attribute_name(name)
            check_text(value, f"the header {name}")
        super().check(message)

    def size(self, message: OutboxMessage) -> int:
        """See :class:`BatchTarget`."""
        parts = [message.body, *(f"{name}String{value}" for name, value in _attributes(message).items())]
        return sum(len(part.encode()) for part in parts)

    def body(self, messages: Sequence[OutboxMessage]) -> Document:
        """See :class:`BatchTarget`."""
        entries = {
            f"PublishBatchRequestEntries.member.{number}.{name}": value
            for number, message in enumerate(messages, 1)
            for name, value in self._entry(str(number - 1), message).items()
        }
        return {"TopicArn": self.where, **entries}

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

    def _entry(self, name: str, message: OutboxMessage) -> dict[str, str]:
        entry = {"Id": name, "Message": message.body}
        if message.group is not None:
            entry["MessageGroupId"] = message.group
        if self._fifo:
            entry["MessageDeduplicationId"] = message.key
        for number, (header, value) in enumerate(_attributes(message).items(), 1):
            start = f"MessageAttributes.entry.{number}."
            entry |= {f"{start}Name": header, f"{start}Value.DataType": "String", f"{start}Value.StringValue": value}
        return entry


def _attributes(message: OutboxMessage) -> Mapping[str, str]:
    return {**message.headers, KEY_ATTRIBUTE: message.key}
