"""SNS topics as targets, standard and FIFO."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from onceward.aws.events import KEY_ATTRIBUTE
from onceward.aws.sqs.keyed import check_group
from onceward.aws.sqs.message import MOST_ATTRIBUTES, check_attribute_name, check_text
from onceward.aws.targets.sending import AwsClient, Told, by_size, send_batches, told_of, unanswered
from onceward.core.urls import shown_url
from onceward.errors import StoreError
from onceward.outbox.targets import MessageNotSent, MessageRefused, OutboxMessage
from onceward.wire.calls import QUERY, Service
from onceward.wire.codes import code_of, message_of, short
from onceward.wire.endpoints import from_environment

_SNS: Final = Service("SNS", "sns", "2010-03-31", QUERY)
_ARN: Final = re.compile(r"arn:[a-z-]+:sns:([a-z0-9-]+):[0-9]*:[A-Za-z0-9_-]{1,256}(\.fifo)?")
_ENTRIES: Final = 10  # of a batch (SNS API Reference, PublishBatch)
# Bytes of a batch, and of a message. A topic takes 256 KiB, or what its MaximumMessageSize says, up to 1 MiB (as above).
_TOGETHER: Final = 256 * 1024
_LARGEST: Final = 1024 * 1024
# SNS API Reference, the errors of Publish and PublishBatch, and "Common Errors".
_REFUSED: Final = frozenset(
    {
        "BatchRequestTooLong",
        "InvalidParameter",
        "InvalidParameterCombination",
        "InvalidParameterValue",
        "MissingParameter",
        "ParameterValueInvalid",
        "Validation",
        "ValidationError",
    }
)


class SnsTarget:
    """A topic. A message's key is its attribute ``onceward-key``, and its deduplication id in a FIFO topic.

    Its headers are further attributes. Onceward itself writes three, and a handler can give seven: a queue that is subscribed with
    raw delivery gets no message with more than ten (SNS Developer Guide, "Amazon SNS message attributes").

    Args:
        address: ``sns:`` and the topic's ARN.

    Raises:
        ValueError: the address is not valid.
    """

    batch = _ENTRIES

    def __init__(self, address: str) -> None:
        self._arn = address.partition(":")[2]
        found = _ARN.fullmatch(self._arn)
        if found is None:
            raise ValueError(
                f"{shown_url(address)!r} is not a topic: give its ARN, as in sns:arn:aws:sns:eu-west-1:123456789012:orders"
            )
        self._fifo = found[2] is not None
        self._client = AwsClient(_SNS, found[1], from_environment("sns"))

    def check(self, message: OutboxMessage) -> None:
        """Raise ValueError if the topic can never take the message."""
        if message.delay is not None:
            raise ValueError(f"{self._arn}: SNS has no delay=; leave it out")
        if self._fifo and message.group is None:
            raise ValueError(f"{self._arn} is a FIFO topic: give group=, within which it keeps the order")
        check_group(message.group)
        attributes = _attributes(message)
        if len(attributes) > MOST_ATTRIBUTES:
            raise ValueError(f"headers: {len(attributes)} with those of onceward, and SNS passes on {MOST_ATTRIBUTES}")
        check_text(message.body, "the body")
        for name, value in attributes.items():
            check_attribute_name(name)
            check_text(value, f"the header {name}")
        if (size := _size(message)) > _LARGEST:
            raise ValueError(f"the message has {size} bytes with its headers, and SNS takes {_LARGEST}")

    def send(self, messages: Sequence[OutboxMessage]) -> list[Told]:
        """Publish messages, ten with one request."""
        return send_batches(messages, self.check, _divided, self._batch)

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    def _batch(self, messages: list[OutboxMessage], _: float) -> list[Told] | MessageRefused | MessageNotSent:
        body = {"TopicArn": self._arn}
        for number, message in enumerate(messages):
            start = f"PublishBatchRequestEntries.member.{number + 1}."
            body |= {start + name: value for name, value in self._entry(str(number), message).items()}
        try:
            answer = self._client.ask("PublishBatch", body)
        except StoreError as error:
            return unanswered(self._arn, error)
        if answer.status != 200:
            return told_of(self._arn, code_of(answer), message_of(answer), _REFUSED)
        assert isinstance(answer.body, bytes)
        found = _answers(answer.body)
        unsaid = "the answer does not say what became of it"
        told: list[Told] = []
        for number in range(len(messages)):
            code, why = found.get(str(number), ("", unsaid))
            told.append(None if code is None else told_of(self._arn, code, why, _REFUSED))
        return told

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


def _divided(messages: list[OutboxMessage]) -> list[list[int]]:
    return by_size([_size(message) for message in messages], _ENTRIES, _TOGETHER)


def _attributes(message: OutboxMessage) -> Mapping[str, str]:
    return {**message.headers, KEY_ATTRIBUTE: message.key}


def _size(message: OutboxMessage) -> int:
    parts = [message.body, *(f"{name}String{value}" for name, value in _attributes(message).items())]
    return sum(len(part.encode()) for part in parts)


def _answers(content: bytes) -> dict[str, tuple[str | None, str]]:
    """Return by entry its code and message; a code of None says that it was published."""
    from xml.etree import ElementTree as ET

    try:
        root = ET.fromstring(content)  # noqa: S314  # of SNS, over a connection whose certificate is checked
    except ET.ParseError:
        return {}
    found: dict[str, tuple[str | None, str]] = {}
    for member in root.iter():
        fields = {part.tag.rpartition("}")[2]: part.text or "" for part in member}
        if "Id" in fields and ("MessageId" in fields or "Code" in fields):
            code = short(fields["Code"]) if "Code" in fields else None
            found[fields["Id"]] = code, fields.get("Message", "")
    return found
