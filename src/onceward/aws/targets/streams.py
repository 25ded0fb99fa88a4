"""Streams of Kinesis and of Firehose as targets."""

import re
from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, cast

from onceward.aws.targets.sending import (
    AwsClient,
    Told,
    by_size,
    enveloped,
    options_of,
    send_batches,
    told_of,
    unanswered,
)
from onceward.core.urls import shown_url
from onceward.errors import StoreError
from onceward.outbox.targets import MessageNotSent, MessageRefused, OutboxMessage
from onceward.wire.calls import Service
from onceward.wire.codes import code_of, message_of, short
from onceward.wire.endpoints import from_environment

_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_KINESIS_ARN: Final = re.compile(r"arn:[a-z-]+:kinesis:([a-z0-9-]+):[0-9]{12}:stream/[a-zA-Z0-9_.-]{1,128}")
_LONGEST_GROUP: Final = 256  # characters of a partition key (Kinesis API Reference, PutRecordsRequestEntry)
# Kinesis API Reference, the errors of PutRecords; Firehose API Reference, those of PutRecordBatch; "Common Errors".
_REFUSED: Final = frozenset({"InvalidArgument", "Validation", "ValidationError"})


class _Kind(NamedTuple):
    """One of the two services."""

    service: Service
    action: str
    answers: str  # the member of its answer with what became of each record
    has_groups: bool
    end: str  # after each record
    entries: int  # records of a request
    largest: int  # bytes of a record
    together: int  # bytes of a request


# Kinesis API Reference, PutRecords. A stream can be set to larger records, but a message of the outbox is never so large.
_KINESIS: Final = _Kind(
    Service("Kinesis", "kinesis", "Kinesis_20131202", "1.1"),
    "PutRecords",
    "Records",
    has_groups=True,
    end="",
    entries=500,
    largest=1024 * 1024,
    together=5 * 1024 * 1024,
)
# Firehose API Reference, PutRecordBatch. Firehose writes records one after the other, so each is a line.
_FIREHOSE: Final = _Kind(
    Service("Firehose", "firehose", "Firehose_20150804", "1.1"),
    "PutRecordBatch",
    "RequestResponses",
    has_groups=False,
    end="\n",
    entries=500,
    largest=1000 * 1024,
    together=4 * 1024 * 1024,
)


class _StreamTarget:
    """A stream. A message is a JSON object, with its key and headers in the member ``onceward``."""

    def __init__(self, kind: _Kind, stream: Mapping[str, str], region: str | None) -> None:
        self._kind = kind
        self._stream = stream
        self._name = next(iter(stream.values()))
        self._client = AwsClient(kind.service, region, from_environment(kind.service.name))
        self.batch = kind.entries

    def check(self, message: OutboxMessage) -> None:
        """Raise ValueError if the stream can never take the message."""
        title = self._kind.service.title
        if message.delay is not None:
            raise ValueError(f"{self._name}: {title} has no delay=; leave it out")
        if message.group is not None and not self._kind.has_groups:
            raise ValueError(f"{self._name}: {title} has no group=; leave it out")
        if message.group is not None and not 1 <= len(message.group) <= _LONGEST_GROUP:
            raise ValueError(f"group={message.group!r}: give 1 to {_LONGEST_GROUP} characters")
        if (size := self._size(message)) > self._kind.largest:
            raise ValueError(f"the record has {size} bytes with its headers, and {title} takes {self._kind.largest}")

    def send(self, messages: Sequence[OutboxMessage]) -> list[Told]:
        """Put records, as many as possible with one request."""
        return send_batches(messages, self.check, self._divided, self._batch)

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    def _divided(self, messages: list[OutboxMessage]) -> list[list[int]]:
        return by_size([self._size(message) for message in messages], self._kind.entries, self._kind.together)

    def _size(self, message: OutboxMessage) -> int:
        partition = (message.group or message.key) if self._kind.has_groups else ""
        return len(self._data(message)) + len(partition.encode())

    def _data(self, message: OutboxMessage) -> bytes:
        return (enveloped(message, self._kind.service.title) + self._kind.end).encode()

    def _record(self, message: OutboxMessage) -> dict[str, str]:
        record = {"Data": b2a_base64(self._data(message), newline=False).decode()}
        # A group goes to one shard. All else is spread over the shards by its key.
        return {**record, "PartitionKey": message.group or message.key} if self._kind.has_groups else record

    def _batch(self, messages: list[OutboxMessage], _: float) -> list[Told] | MessageRefused | MessageNotSent:
        records = [self._record(message) for message in messages]
        try:
            answer = self._client.ask(self._kind.action, {**self._stream, "Records": records})
        except StoreError as error:
            return unanswered(self._name, error)
        if answer.status != 200:
            return told_of(self._name, code_of(answer), message_of(answer), _REFUSED)
        found = cast("Mapping[str, list[Mapping[str, str]]]", answer.body).get(self._kind.answers) or []
        if len(found) != len(messages):
            return MessageNotSent(f"{self._name}: the answer does not say what became of each record")
        return [
            None
            if one.get("SequenceNumber") or one.get("RecordId")
            else told_of(self._name, short(one.get("ErrorCode") or "no code"), one.get("ErrorMessage") or "", _REFUSED)
            for one in found
        ]


class KinesisTarget(_StreamTarget):
    """A stream of Kinesis. A message's group is its partition key, or else its own key is.

    :func:`onceward.aws.on_kinesis` takes the member ``onceward`` out again, and takes the message once.

    Args:
        address: ``kinesis:`` and the stream's name or ARN; ``?region=REGION`` is for a name in another region than the environment's.

    Raises:
        ValueError: the address is not valid.
    """

    def __init__(self, address: str) -> None:
        place, options = options_of(address, {"region"})
        arn = _KINESIS_ARN.fullmatch(place)
        if (arn is None and not _NAME.fullmatch(place)) or (arn is not None and options):
            raise ValueError(f"{shown_url(address)!r} is not a stream: give its name, or its ARN without a region=")
        stream = {"StreamName": place} if arn is None else {"StreamARN": place}
        super().__init__(_KINESIS, stream, options.get("region") if arn is None else arn[1])


class FirehoseTarget(_StreamTarget):
    """A Firehose stream with direct PUT. Each message is a line of JSON.

    Firehose itself drops no repetition. Who reads its files looks at ``onceward-key`` in the member ``onceward`` of a line.

    Args:
        address: ``firehose:`` and the stream's name; ``?region=REGION`` if it is not in the region of the environment.

    Raises:
        ValueError: the address is not valid.
    """

    def __init__(self, address: str) -> None:
        place, options = options_of(address, {"region"})
        if not _NAME.fullmatch(place):
            raise ValueError(
                f"{shown_url(address)!r} is not a stream: give its name, as in firehose:clicks?region=eu-west-1"
            )
        super().__init__(_FIREHOSE, {"DeliveryStreamName": place}, options.get("region"))
