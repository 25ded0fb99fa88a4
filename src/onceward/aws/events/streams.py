"""Lambda's events of Kinesis and DynamoDB streams: in order, and repeated from the first failure on."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Unpack

from onceward.aws.events.handler import LambdaHandler, Settings, Source, wrapping
from onceward.aws.events.response import AllFailed, Response, reporting
from onceward.consumers.delivery import (
    Delivery,
    MalformedEvent,
    MalformedRecord,
    at,
    deliveries_of,
    from_base64,
    needed,
    text_at,
)

if TYPE_CHECKING:
    from onceward.once import Once

KINESIS: Final = "aws:kinesis"
DYNAMODB: Final = "aws:dynamodb"


def on_kinesis(
    once: "Once", *, partial: bool = True, all_failed: AllFailed = "report", **settings: Unpack[Settings]
) -> Callable[[Callable[..., object]], LambdaHandler[Response]]:
    """Make a function the handler of a Kinesis stream's records, each handled once and in order.

    Aggregates of the Kinesis Producer Library are taken apart. The key is the stream, the shard and the sequence number by
    default, and of a record in an aggregate its place there, too. Nothing after a record that failed is begun or claimed.

    Args:
        once: the ledger and the defaults of the policy.
        partial: whether the event source mapping has ``ReportBatchItemFailures``; if not, give False: then any failure
            fails the invocation, because a response would be ignored and the records passed over.
        all_failed: whether to "report" an event of which nothing succeeded, too, or to "raise" :class:`BatchFailed`.
        **settings: see :class:`Settings`.

    Returns:
        A decorator. The handler answers ``{"batchItemFailures": [{"itemIdentifier": sequenceNumber}]}`` with the first
        record that failed, from which on Lambda delivers again (Lambda Developer Guide, "Configuring partial batch
        response with Kinesis Data Streams and Lambda"). It raises :class:`MalformedEvent` for what is no event of Kinesis, also
        for one of a time window, and :class:`BatchFailed` when a record that failed has no sequence number.

    Raises:
        TypeError, ValueError: an option is not valid, or the function does not fit; when decorating.
    """
    return wrapping(once, _stream("on_kinesis", _kinesis, partial=partial, all_failed=all_failed), settings)


def on_dynamodb_stream(
    once: "Once", *, partial: bool = True, all_failed: AllFailed = "report", **settings: Unpack[Settings]
) -> Callable[[Callable[..., object]], LambdaHandler[Response]]:
    """Make a function the handler of a table's changes, each handled once and in order.

    The payload is a dict with ``eventName`` and, as far as the stream's view has them, ``Keys``, ``NewImage`` and
    ``OldImage``, with plain values: numbers are int, or Decimal when they are not whole, sets are set, binaries bytes. The key is the
    ``eventID`` by default.

    Args:
        once: as for :func:`on_kinesis`, like all the other arguments.
        partial: see there.
        all_failed: see there.
        **settings: see :class:`Settings`.

    Returns:
        As :func:`on_kinesis`.

    Raises:
        TypeError, ValueError: as :func:`on_kinesis`.
    """
    return wrapping(once, _stream("on_dynamodb_stream", _dynamodb, partial=partial, all_failed=all_failed), settings)


def _stream(
    name: str, deliveries: Callable[[object], list[Delivery]], *, partial: bool, all_failed: AllFailed
) -> Source[Response]:
    return Source(
        name,
        lambda event, _: deliveries(event),
        reporting(partial=partial, all_failed=all_failed, first_only=True),
        group=lambda _: "the shard",  # Lambda gives a function the records of one shard at a time
    )


def _refuse_window(event: object) -> None:
    if at(event, "window") is not None:
        raise MalformedEvent(
            "this is an event of a tumbling window, whose state a handler of single records cannot keep; nothing has run. "
            "Take TumblingWindowInSeconds out of the event source mapping"
        )


# --- Kinesis ----------------------------------------------------------------------------------------------------------


def _kinesis(event: object) -> list[Delivery]:
    _refuse_window(event)
    return deliveries_of(event, KINESIS, _kinesis_record)


def _kinesis_record(record: object) -> Iterator[Delivery]:
    from onceward.aws.events.kpl import user_records

    number = text_at(record, "kinesis", "sequenceNumber")
    stream, event_id = text_at(record, "eventSourceARN"), text_at(record, "eventID")
    # For a consumer with enhanced fan-out it contains the consumer's name, but the records are the stream's.
    key = None if stream is None or event_id is None else (stream.partition("/consumer/")[0], event_id)

    def delivery(raw: object, key: object, body: bytes | None) -> Delivery:
        made = Delivery(KINESIS, raw)
        made.id, made.key, made.body = number, key, body
        return made

    try:
        body = from_base64(needed(record, "kinesis", "data"), "kinesis.data")
        inner = user_records(body)
    except (MalformedRecord, ValueError) as error:
        broken = delivery(record, key, None)
        if isinstance(error, MalformedRecord):
            broken.fault = error
        else:
            broken.fault = MalformedRecord(f"of an aggregate: {error}")
            broken.fault.__cause__ = error
        yield broken
        return
    if inner is None:
        yield delivery(record, key, body)
        return
    assert isinstance(record, dict)  # it had kinesis.data
    for index, user_record in enumerate(inner):
        own = {
            "partitionKey": user_record.partition_key,
            "explicitHashKey": user_record.explicit_hash_key,
            "subSequenceNumber": index,
        }
        raw = {**record, "kinesis": {**record["kinesis"], **own}}
        yield delivery(raw, None if key is None else (*key, index), user_record.data)


# --- DynamoDB ---------------------------------------------------------------------------------------------------------


def _dynamodb(event: object) -> list[Delivery]:
    _refuse_window(event)
    return deliveries_of(event, DYNAMODB, lambda record: (_change(record),))


def _change(record: object) -> Delivery:
    delivery = Delivery(DYNAMODB, record)
    delivery.id = text_at(record, "dynamodb", "SequenceNumber")
    delivery.key = text_at(record, "eventID")
    try:
        data: dict[str, object] = {"eventName": needed(record, "eventName")}
        for name in ("Keys", "NewImage", "OldImage"):
            image = at(record, "dynamodb", name)
            if image is not None:
                data[name] = _plain({"M": image})
        delivery.data = data
    except MalformedRecord as fault:
        delivery.fault = fault
    except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        delivery.fault = MalformedRecord(f"the record has what is no attribute value of DynamoDB: {error!r}")
        delivery.fault.__cause__ = error
    return delivery


def _plain(attribute: Any) -> object:
    """Return an attribute value (DynamoDB API Reference, AttributeValue) as a plain one; a wrong one raises various errors."""
    ((kind, value),) = attribute.items()
    reader = _READERS.get(kind)
    if reader is None:
        raise ValueError(f"there is no type {kind!r}")
    return reader(value)


def _number(text: Any) -> object:
    if not isinstance(text, str):
        raise TypeError(f"a number is written as text, not as {type(text).__name__}")
    if text.removeprefix("-").isdecimal():
        return int(text)
    from decimal import Decimal

    return Decimal(text)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text is no {type(value).__name__}")
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
