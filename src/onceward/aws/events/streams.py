"""Lambda's events of Kinesis and DynamoDB streams: in order, and repeated from the first failure on."""

from collections.abc import Iterator
from functools import partial
from hashlib import md5
from typing import Any, Final, Unpack, cast

import msgspec

from onceward.aws.events import ENVELOPE, KEY_ATTRIBUTE
from onceward.aws.events.handler import Decorator, ReportOptions, Response, report
from onceward.aws.events.records import Fill, MalformedEvent, at, deliveries_of, from_base64, require_text, text_at
from onceward.consumers.delivery import Delivery, MalformedRecord
from onceward.once import Once

KINESIS: Final = "aws:kinesis"
DYNAMODB: Final = "aws:dynamodb"
_MARK: Final = f'"{KEY_ATTRIBUTE}"'.encode()  # in the JSON of an envelope


def on_kinesis(once: Once, **options: Unpack[ReportOptions]) -> Decorator[Response]:
    """Make a function the handler of a Kinesis stream's records, each handled once and in order.

    Aggregates of the Kinesis Producer Library are taken apart. The outbox adds a member ``onceward`` to a record, with
    a key and headers. The payload does not contain it. The default key is this one, else the stream, the shard and the
    sequence number, plus the place of a record in its aggregate. After a record that failed, no later record is begun
    or claimed.

    Args:
        once: the ledger and the defaults of the policy.
        **options: see :class:`ReportOptions`.

    Returns:
        A decorator. The handler answers ``{"batchItemFailures": [{"itemIdentifier": sequenceNumber}]}`` with the first
        record that failed. Lambda delivers again from there (Lambda Developer Guide, "Configuring partial batch
        response with Kinesis Data Streams and Lambda"). It raises :class:`MalformedEvent` if the event is not of
        Kinesis, or is of a time window, and :class:`BatchFailed` if a record that failed has no sequence number.

    Raises:
        TypeError, ValueError: an option is not valid, or the function does not fit; when decorating.
    """
    return report(once, "on_kinesis", _kinesis, group=_shard, first_only=True, **options)


def on_dynamodb_stream(once: Once, **options: Unpack[ReportOptions]) -> Decorator[Response]:
    """Make a function the handler of a table's changes, each handled once and in order.

    The payload is a dict with ``eventName`` and, if the stream's view has them, ``Keys``, ``NewImage`` and
    ``OldImage``. Their values are plain: a number is an int, or a Decimal if it is not whole; a binary is bytes. The key is the
    ``eventID`` by default. Arguments, answer and errors are those of :func:`on_kinesis`.
    """
    return report(
        once,
        "on_dynamodb_stream",
        partial(_deliveries, source=DYNAMODB, fill=_change),
        group=_shard,
        first_only=True,
        **options,
    )


def _shard(_: Delivery) -> str:
    return "the shard"  # Lambda gives a function the records of one shard at a time


def _deliveries(event: object, source: str, fill: Fill) -> list[Delivery]:
    if at(event, "window") is not None:
        raise MalformedEvent(
            "this is an event of a tumbling window. A handler of single records cannot keep its state; nothing has run. "
            "Remove TumblingWindowInSeconds from the event source mapping"
        )
    return deliveries_of(event, source, fill)


# --- Kinesis ----------------------------------------------------------------------------------------------------------


def _kinesis(event: object) -> list[Delivery]:
    return [inner for outer in _deliveries(event, KINESIS, _kinesis_record) for inner in _taken_apart(outer)]


def _kinesis_record(delivery: Delivery) -> None:
    raw = delivery.raw
    delivery.id = text_at(raw, "kinesis", "sequenceNumber")
    stream, event_id = text_at(raw, "eventSourceARN"), text_at(raw, "eventID")
    delivery.place = event_id  # the shard and the sequence number
    if stream is not None and event_id is not None:
        # For a consumer with enhanced fan-out it contains the consumer's name, but the records are the stream's.
        delivery.key = (stream.partition("/consumer/")[0], event_id)
    delivery.body = data = from_base64(require_text(raw, "kinesis", "data"), "kinesis.data")
    if _MARK in data:
        _open_envelope(delivery, data)


def _open_envelope(delivery: Delivery, data: bytes) -> None:
    """Take key and headers from a record that the outbox has sent, and leave the message as it was."""
    try:
        members = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        envelope = msgspec.json.decode(members.pop(ENVELOPE, b"{}"), type=dict[str, str])
    except (msgspec.MsgspecError, ValueError):
        return  # somebody else's
    if key := envelope.get(KEY_ATTRIBUTE):
        delivery.key = key
        delivery.header = envelope.get
        delivery.body = msgspec.json.encode(members)


def _taken_apart(outer: Delivery) -> list[Delivery]:
    if outer.fault is not None:
        return [outer]
    try:
        records = user_records(cast("bytes", outer.body))
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        outer.fault = MalformedRecord(f"an aggregate of the Kinesis Producer Library cannot be read: {error!r}")
        outer.fault.__cause__ = error
        return [outer]
    if records is None:
        return [outer]
    inner = []
    for index, (partition_key, data) in enumerate(records):
        own = {"partitionKey": partition_key, "subSequenceNumber": index}
        delivery = Delivery(KINESIS, {**outer.raw, "kinesis": {**outer.raw["kinesis"], **own}})
        delivery.id, delivery.body = outer.id, data
        delivery.place = f"{outer.place or outer.id}, number {index} of its aggregate"
        delivery.key = (*outer.key, index) if isinstance(outer.key, tuple) else None
        inner.append(delivery)
    return inner


# --- the aggregates of the Kinesis Producer Library ------------------------------------------------------------------

# The format is described in "KPL Aggregated Record Format" (awslabs/amazon-kinesis-producer, aggregation-format.md): four bytes
# of magic, a protobuf message, and the MD5 of that message. Data without all three is a plain record. The message is ::
#
#     message AggregatedRecord { repeated string partition_key_table = 1; repeated string explicit_hash_key_table = 2;
#                                repeated Record records = 3; }
#     message Record { required uint64 partition_key_index = 1; optional uint64 explicit_hash_key_index = 2;
#                      required bytes data = 3; repeated Tag tags = 4; }

MAGIC: Final = b"\xf3\x89\x9a\xc2"
_DIGEST = 16  # bytes of an MD5
_LONGEST_VARINT = 70  # bits of 64, seven in each byte
_VARINT, _BYTES = 0, 2  # protobuf's wire types; the format has no others


def user_records(data: bytes) -> list[tuple[str, bytes]] | None:
    """Return partition key and data of the records of an aggregate, or None when ``data`` is a plain record.

    Raises:
        ValueError, TypeError, AttributeError, LookupError: its magic and digest are those of an aggregate, but its message cannot be read.
    """
    message = data[len(MAGIC) : -_DIGEST]
    if not data.startswith(MAGIC) or not message:
        return None
    if md5(message, usedforsecurity=False).digest() != data[-_DIGEST:]:
        return None
    fields = list(_fields(message))
    keys = [key.decode() for number, key in fields if number == 1]
    records = [dict(_fields(record)) for number, record in fields if number == 3]
    return [(keys[record[1]], b"" + record[3]) for record in records]


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field (protobuf.dev/programming-guides/encoding)."""
    place = 0

    def varint() -> int:
        nonlocal place
        number = 0
        for shift in range(0, _LONGEST_VARINT, 7):
            byte = message[place]
            place += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise ValueError("a number has more than 64 bits")

    while place < len(message):
        tag, value = varint(), varint()
        if tag & 7 == _BYTES:
            start, place = place, place + value
            if place > len(message):
                raise ValueError("it ends within a field")
            yield tag >> 3, message[start:place]
        elif tag & 7 == _VARINT:
            yield tag >> 3, value
        else:
            raise ValueError(f"a field has the wire type {tag & 7}")


# --- DynamoDB ---------------------------------------------------------------------------------------------------------


def _change(delivery: Delivery) -> None:
    raw = delivery.raw
    delivery.id = text_at(raw, "dynamodb", "SequenceNumber")
    delivery.key = text_at(raw, "eventID")
    data: dict[str, object] = {"eventName": require_text(raw, "eventName")}
    try:
        for name in ("Keys", "NewImage", "OldImage"):
            if (image := at(raw, "dynamodb", name)) is not None:
                data[name] = _plain({"M": image})
    except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise MalformedRecord(f"the record contains a value that is not DynamoDB's: {error!r}") from error
    delivery.data = data


def _plain(attribute: Any) -> object:
    """Return an attribute value (DynamoDB API Reference, AttributeValue) as a plain one; a wrong one raises various errors."""
    ((kind, value),) = attribute.items()
    match kind:
        case "S" if isinstance(value, str):
            return value
        case "BOOL":
            return bool(value)
        case "N":
            from decimal import Decimal

            return int(value) if value.removeprefix("-").isdecimal() else Decimal(value)
        case "B":
            return from_base64(value, "a binary attribute")
        case "NULL":
            return None
        case "M":
            return {name: _plain(item) for name, item in value.items()}
        case "L":
            return [_plain(item) for item in value]
        case "SS" | "NS" | "BS":
            return {_plain({kind[0]: item}) for item in value}
    raise ValueError(f"there is no type {kind!r}, or its value is of another")
