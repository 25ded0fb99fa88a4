"""Streams of Kinesis and Firehose, and buses of EventBridge, as targets: a message is a JSON object that has its key in it."""

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from onceward.aws.events import ENVELOPE, KEY_ATTRIBUTE
from onceward.aws.targets.sending import BatchTarget, options_of
from onceward.core.urls import shown_url
from onceward.outbox.targets import OutboxMessage, refuse_options
from onceward.wire.calls import Document, Service, ServiceAnswer, short

_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_KINESIS_ARN: Final = re.compile(r"arn:[a-z-]+:kinesis:([a-z0-9-]+):[0-9]{12}:stream/[a-zA-Z0-9_.-]{1,128}")
_BUS: Final = re.compile(r"(?:arn:[a-z-]+:events:([a-z0-9-]+):[0-9]{12}:event-bus/)?[/.\-_A-Za-z0-9]{1,256}")
_LONGEST_GROUP: Final = 256  # characters of a partition key (Kinesis API Reference, PutRecordsRequestEntry)
# Kinesis API Reference, the errors of PutRecords; Firehose API Reference, those of PutRecordBatch; EventBridge API Reference,
# PutEventsResultEntry; "Common Errors". Of the errors that EventBridge calls not retryable, those about an account or a permission
# can be fixed without the message.
_REFUSED: Final = frozenset({"InvalidArgument", "Validation", "ValidationError"})
_IDS: Final = ("EventId", "SequenceNumber", "RecordId")  # what a message gets that was taken


class _RecordTarget(BatchTarget):
    """A message is a JSON object, with its key and headers in the member ``onceward``."""

    rest: Mapping[str, str]  # of a request, besides its messages
    inside, member = "Records", "Records"  # where a request has the messages, and its answer what became of each
    unknown: tuple[str, ...] = ("delay", "group")  # what it does not have
    refusals = _REFUSED

    def size(self, message: OutboxMessage) -> int:
        """See :class:`BatchTarget`."""
        refuse_options(f"{self.where}: {self.service.title}", message, *self.unknown)
        parts = [part for name, part in self.entry(message).items() if name != "EventBusName"]
        return sum(len(part) if isinstance(part, bytes) else len(part.encode()) for part in parts)

    def body(self, messages: Sequence[OutboxMessage]) -> Document:
        """See :class:`BatchTarget`."""
        return {**self.rest, self.inside: [self.entry(message) for message in messages]}

    @abstractmethod
    def entry(self, message: OutboxMessage) -> dict[str, str | bytes]:
        """Return what a request has of a message."""

    def codes(self, answer: ServiceAnswer) -> Mapping[str, tuple[str | None, str]]:
        """See :class:`BatchTarget`. An entry has no name but its place."""
        return {
            str(number): (None, "")
            if any(one.get(name) for name in _IDS)
            else (short(one.get("ErrorCode") or "no code"), one.get("ErrorMessage") or "")
            for number, one in enumerate(answer.body.get(self.member) or ())
        }

    def text(self, message: OutboxMessage) -> bytes:
        """Return the message's JSON object with the member ``onceward``; raises ValueError if it is none, or has such a member."""
        try:
            members = msgspec.json.decode(message.body, type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, ValueError) as error:
            raise ValueError(f"a message to {self.service.title} is a JSON object: {error}") from error
        if ENVELOPE in members:
            raise ValueError(
                f"the message has a member {ENVELOPE!r}, which onceward itself writes; give it another name"
            )
        return msgspec.json.encode({**members, ENVELOPE: {**message.headers, KEY_ATTRIBUTE: message.key}})


class KinesisTarget(_RecordTarget):
    """A stream of Kinesis. A message's group is its partition key, or else its own key is.

    :func:`onceward.aws.on_kinesis` takes the member ``onceward`` out again, and takes the message once.

    Args:
        address: ``kinesis:`` and the stream's name or ARN; ``?region=REGION`` is for a name in another region than the environment's.

    Raises:
        ValueError: the address is not valid.
    """

    # Kinesis API Reference, PutRecords. A stream can be set to larger records, but a message of the outbox is never so large.
    service, action = Service("Kinesis", "kinesis", "Kinesis_20131202", "1.1"), "PutRecords"
    batch, largest, together = 500, 1024 * 1024, 5 * 1024 * 1024
    unknown = ("delay",)

    def __init__(self, address: str) -> None:
        place, options = options_of(address, {"region"})
        arn = _KINESIS_ARN.fullmatch(place)
        if (arn is None and not _NAME.fullmatch(place)) or (arn is not None and options):
            raise ValueError(f"{shown_url(address)!r} is not a stream: give its name, or its ARN without a region=")
        self.rest = {"StreamName" if arn is None else "StreamARN": place}
        super().__init__(place, options.get("region") if arn is None else arn[1])

    def entry(self, message: OutboxMessage) -> dict[str, str | bytes]:
        """Return a record. A group goes to one shard; all else is spread over the shards by its key."""
        if message.group is not None and not 1 <= len(message.group) <= _LONGEST_GROUP:
            raise ValueError(f"group={message.group!r}: give 1 to {_LONGEST_GROUP} characters")
        return {"Data": self.text(message), "PartitionKey": message.group or message.key}


class FirehoseTarget(_RecordTarget):
    """A Firehose stream with direct PUT. Each message is a line of JSON.

    Firehose itself drops no repetition. Who reads its files looks at ``onceward-key`` in the member ``onceward`` of a line.

    Args:
        address: ``firehose:`` and the stream's name; ``?region=REGION`` if it is not in the region of the environment.

    Raises:
        ValueError: the address is not valid.
    """

    # Firehose API Reference, PutRecordBatch.
    service, action = Service("Firehose", "firehose", "Firehose_20150804", "1.1"), "PutRecordBatch"
    batch, largest, together = 500, 1000 * 1024, 4 * 1024 * 1024
    member = "RequestResponses"

    def __init__(self, address: str) -> None:
        place, options = options_of(address, {"region"})
        if not _NAME.fullmatch(place):
            raise ValueError(
                f"{shown_url(address)!r} is not a stream: give its name, as in firehose:clicks?region=eu-west-1"
            )
        self.rest = {"DeliveryStreamName": place}
        super().__init__(place, options.get("region"))

    def entry(self, message: OutboxMessage) -> dict[str, str | bytes]:
        """See above."""
        return {"Data": self.text(message) + b"\n"}  # Firehose writes records one after the other


class BusTarget(_RecordTarget):
    """A bus. A message is the ``detail`` of an event, so it must be a JSON object.

    Its key and headers are the member ``onceward`` of the detail, which :func:`onceward.aws.on_eventbridge` takes out. EventBridge
    answers that it has taken an event also if no rule matches it.

    Args:
        address: ``eventbridge:BUS?source=SOURCE&detail-type=TYPE``; BUS is a name or an ARN. ``region=`` is for a bus with a name
            that is not in the region of the environment.

    Raises:
        ValueError: the address is not valid.
    """

    # EventBridge API Reference, PutEvents; EventBridge User Guide, "Calculating PutEvents event entry size".
    service, action = Service("EventBridge", "events", "AWSEvents", "1.1"), "PutEvents"
    batch, largest, together = 10, 256 * 1024, 256 * 1024
    inside, member, what = "Entries", "Entries", "event"
    rest: Mapping[str, str] = {}
    refusals = _REFUSED | {"MalformedDetail", "RedactionFailure"}

    def __init__(self, address: str) -> None:
        bus, options = options_of(address, {"source", "detail-type", "region"})
        match = _BUS.fullmatch(bus)
        source, kind = options.get("source", ""), options.get("detail-type", "")
        if match is None or not source or not kind:
            raise ValueError(
                f"{shown_url(address)!r} is not a bus: give its name or ARN, source= and detail-type=, as in "
                "eventbridge:orders?source=shop&detail-type=Paid"
            )
        if source.startswith("aws.") or len(source) > 256 or len(kind) > 128:
            raise ValueError(
                f"{shown_url(address)!r}: a source has up to 256 characters and does not begin with aws., a detail-type has up to 128"
            )
        self._entry = {"EventBusName": bus, "Source": source, "DetailType": kind}
        super().__init__(bus, match[1] or options.get("region"))

    def entry(self, message: OutboxMessage) -> dict[str, str | bytes]:
        """See above."""
        return {**self._entry, "Detail": self.text(message).decode()}
