"""Lambda's events of Kinesis and DynamoDB streams: in order, and repeated from the first failure on."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Unpack

import msgspec

from onceward.aws.events import ENVELOPE, KEY_ATTRIBUTE
from onceward.aws.events.handler import Decorator
from onceward.aws.events.records import Fill, MalformedEvent, at, deliveries_of, from_base64, require_text, text_at
from onceward.aws.events.response import ReportOptions, Response, report
from onceward.consumers.delivery import Delivery, MalformedRecord
from onceward.once import Once

KINESIS: Final = "aws:kinesis"
DYNAMODB: Final = "aws:dynamodb"
_AGGREGATE: Final = b"\xf3\x89\x9a\xc2"  # how aggregates begin (awslabs/amazon-kinesis-producer, aggregation-format.md)
_MARK: Final = f'"{KEY_ATTRIBUTE}"'.encode()  # in the JSON of an envelope


def on_kinesis(once: Once, **options: Unpack[ReportOptions]) -> Decorator[Response]:
    """Make a function the handler of a Kinesis stream's records, each handled once and in order.

    The outbox adds a member ``onceward`` to a record, with a key and headers. The payload does not contain it. The default key is
    this one, else the stream, the shard and the sequence number. After a record that failed, no later record is begun or
    claimed. An aggregate of the Kinesis Producer Library is malformed (docs/reference/lambda.md).

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
    deliveries = partial(_deliveries, source=KINESIS, fill=_kinesis_record)
    return report(once, "on_kinesis", deliveries, group=_shard, first_only=True, **options)


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


def _kinesis_record(delivery: Delivery) -> None:
    raw = delivery.raw
    delivery.id = text_at(raw, "kinesis", "sequenceNumber")
    stream, event_id = text_at(raw, "eventSourceARN"), text_at(raw, "eventID")
    delivery.place = event_id  # the shard and the sequence number
    if stream is not None and event_id is not None:
        # For a consumer with enhanced fan-out it contains the consumer's name, but the records are the stream's.
        delivery.key = (stream.partition("/consumer/")[0], event_id)
        if isinstance(place := at(raw, "kinesis", "subSequenceNumber"), int):  # of what aws_kinesis_agg took apart
            delivery.key = (*delivery.key, place)
    coded = at(raw, "kinesis", "data")  # aws_kinesis_agg gives bytes
    text = coded.decode() if isinstance(coded, bytes) else require_text(raw, "kinesis", "data")
    delivery.body = data = from_base64(text, "kinesis.data")
    if data.startswith(_AGGREGATE):
        raise MalformedRecord(
            "it is an aggregate of the Kinesis Producer Library: take the event apart with deaggregate_records of aws_kinesis_agg before"
        )
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
    reader = _READERS.get(kind)
    if reader is None:
        raise ValueError(f"there is no type {kind!r}")
    return reader(value)


def _number(text: Any) -> object:
    if not isinstance(text, str):
        raise TypeError(f"a number must be text, not {type(text).__name__}")
    if text.removeprefix("-").isdecimal():
        return int(text)
    from decimal import Decimal

    return Decimal(text)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text must not be a {type(value).__name__}")
    return value


_READERS: Final[dict[str, Callable[[Any], object]]] = {
    "S": _text,
    "N": _number,
    "B": lambda value: from_base64(_text(value), "a binary attribute"),
    "BOOL": bool,
    "NULL": lambda _: None,
    "M": lambda value: {name: _plain(item) for name, item in value.items()},
    "L": lambda value: [_plain(item) for item in value],
    "SS": lambda value: {_text(item) for item in value},
    "NS": lambda value: {_number(item) for item in value},
    "BS": lambda value: {from_base64(_text(item), "a binary attribute") for item in value},
}
