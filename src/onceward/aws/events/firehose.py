"""Firehose's transformation of records by a Lambda function."""

from binascii import b2a_base64
from collections.abc import Sequence
from enum import Enum
from typing import Final, Unpack

import msgspec

from onceward.aws.events.handler import Decorator, handling
from onceward.aws.events.records import at, filled, from_base64, needed, text_at, unfit
from onceward.aws.events.response import BatchFailed, Response, delivery_of
from onceward.batch.outcomes import BatchOutcome
from onceward.consumers.delivery import Delivery, DeliveryOptions
from onceward.observe.logs import logger
from onceward.once import Once
from onceward.results.values import model_data

SOURCE: Final = "aws:firehose"


class Dropped(Enum):
    """The type of :data:`DROPPED`."""

    DROPPED = "Dropped"


DROPPED: Final = Dropped.DROPPED
"""What a function returns for a record that must not be delivered."""


def on_firehose(once: Once, *, concurrency: int = 1, **options: Unpack[DeliveryOptions]) -> Decorator[Response]:
    """Make a function the transformation of a Firehose stream, each record transformed once.

    The function returns bytes, a str, or a value that is written as JSON, or :data:`DROPPED`. What it returned is recorded, and
    a record that comes again gets the same. The key is the stream and the ``recordId`` by default.

    Args:
        once: the ledger and the defaults of the policy; ``max_result`` bounds what can be recorded of one record.
        concurrency: how many records of one event are handled at a time, in threads or tasks.
        **options: see :class:`DeliveryOptions`.

    Returns:
        A decorator. The handler answers with ``recordId``, ``result`` and ``data`` of each record (Firehose Developer Guide,
        "Required parameters for data transformation"). ``Ok`` comes with the new data, ``Dropped`` and ``ProcessingFailed``
        with the unchanged data. It raises :class:`MalformedEvent` if the event is not of Firehose, and
        :class:`BatchFailed` if a record has no ``recordId`` to answer with.

    Raises:
        TypeError, ValueError: an option is not valid, or the function does not fit; when decorating.
    """
    return handling(once, "on_firehose", _deliveries, _answer, concurrency=concurrency, values=True, **options)


def _deliveries(event: object) -> list[Delivery]:
    stream, records = text_at(event, "deliveryStreamArn"), at(event, "records")
    if stream is None or not isinstance(records, list):
        raise unfit(event, "events of Firehose, which have a deliveryStreamArn and a list of records")

    def fill(delivery: Delivery) -> None:
        delivery.id = text_at(delivery.raw, "recordId")
        if delivery.id is not None:
            delivery.key = (stream, delivery.id)
        field = _field(delivery.raw)
        delivery.body = from_base64(needed(delivery.raw, field), field)

    return [filled(SOURCE, record, fill) for record in records]


def _field(record: object) -> str:
    """Return the name of the data's field, which is the same in the answer. It depends on the stream's source."""
    return "kafkaRecordValue" if at(record, "kafkaRecordValue") is not None else "data"


def _answer(outcomes: Sequence[BatchOutcome]) -> Response:
    if any(delivery_of(outcome).id is None for outcome in outcomes):
        raise BatchFailed("the event has a record without a recordId to answer with; Firehose must try again", outcomes)
    return {"records": [_answered(outcome) for outcome in outcomes]}


def _answered(outcome: BatchOutcome) -> dict[str, object]:
    delivery = delivery_of(outcome)
    field = _field(delivery.raw)
    answer: dict[str, object] = {"recordId": delivery.id, "result": "ProcessingFailed", field: at(delivery.raw, field)}
    if not outcome.ok or outcome.error is not None:
        return answer
    if outcome.value is DROPPED:
        return answer | {"result": DROPPED.value}
    try:
        return answer | {"result": "Ok", field: _encoded(outcome.value)}
    except Exception:
        logger().exception("%s: the value that the function returned cannot be delivered", outcome.key)
        return answer


def _encoded(value: object) -> str:
    if value is None:
        raise TypeError("the function returned None: return the new data, or onceward.aws.DROPPED")
    if isinstance(value, str):
        value = value.encode()
    elif not isinstance(value, bytes | bytearray):
        value = msgspec.json.encode(value, enc_hook=model_data)
    return b2a_base64(value, newline=False).decode()
