"""Lambda's events of SNS, EventBridge and S3: asynchronous invocations, which Lambda makes again when they fail."""

from collections.abc import Sequence
from functools import partial
from typing import Final, Unpack
from urllib.parse import unquote_plus

from onceward.aws.events import ENVELOPE, KEY_ATTRIBUTE
from onceward.aws.events.handler import Decorator, handling, raise_failed, raise_own
from onceward.aws.events.records import at, deliveries_of, notification, require_text, text_at, unfit
from onceward.batch.outcomes import BatchOutcome
from onceward.consumers.delivery import Delivery, DeliveryOptions, MalformedRecord
from onceward.once import Once

SNS: Final = "aws:sns"
EVENTBRIDGE: Final = "aws:events"
S3: Final = "aws:s3"


def on_sns(once: Once, **options: Unpack[DeliveryOptions]) -> Decorator[None]:
    """Make a function the handler of a topic's messages, each handled once.

    The payload is the decoded ``Message``. The key is by default the message attribute ``onceward-key``, which the outbox sets, else
    SNS's ``MessageId``.

    Args:
        once: the ledger and the defaults of the policy.
        **options: see :class:`DeliveryOptions`.

    Returns:
        A decorator. The handler answers None. It raises :class:`BatchFailed` if a message failed, so that Lambda tries
        again, and :class:`MalformedEvent` if the event is not of SNS.

    Raises:
        TypeError, ValueError: an option is not valid, or the function does not fit; when decorating.
    """
    return handling(once, "on_sns", partial(deliveries_of, source=SNS, fill=_message), raise_failed, **options)


def on_s3(once: Once, **options: Unpack[DeliveryOptions]) -> Decorator[None]:
    """Make a function the handler of a bucket's notifications, each handled once.

    The payload is a flat dict: ``eventName``, ``eventTime``, ``bucket``, ``key`` (decoded, as ``GetObject`` takes it) and, if
    they are there, ``versionId``, ``size``, ``eTag`` and ``sequencer``; :class:`Delivery` has the rest. By default the key is the
    bucket, the object's key and version, the event's name, and the sequencer or the event's time. Arguments, answer and errors
    are those of :func:`on_sns`.
    """
    return handling(once, "on_s3", partial(deliveries_of, source=S3, fill=_object), raise_failed, **options)


def on_eventbridge(once: Once, **options: Unpack[DeliveryOptions]) -> Decorator[None]:
    """Make a function the handler of a bus's events, each handled once.

    The payload is the event's ``detail``; :class:`Delivery` has the whole event as ``raw``. The outbox adds a member
    ``onceward`` to the detail, with a key and headers. The payload does not contain it. The default key is this one,
    else the event's ``id``. The arguments are those of :func:`on_sns`. The handler answers None. It raises the
    function's exception, or the error that kept it from running, so that Lambda tries again. It raises
    :class:`MalformedEvent` if the event is not of EventBridge.
    """
    return handling(once, "on_eventbridge", _bus_event, _answer_of_one, **options)


def _answer_of_one(outcomes: Sequence[BatchOutcome]) -> None:
    if not outcomes[0].ok:
        raise_own(outcomes)


def _message(delivery: Delivery) -> None:
    delivery.id = text_at(delivery.raw, "Sns", "MessageId")
    notification(delivery, at(delivery.raw, "Sns"))


def _bus_event(event: object) -> list[Delivery]:
    if not isinstance(event, dict) or "detail" not in event or "detail-type" not in event:
        raise unfit(
            event,
            "events of EventBridge, which have detail-type and detail (use on_invoke for the input of a schedule or of an input "
            "transformer)",
        )
    delivery = Delivery(EVENTBRIDGE, event)
    delivery.id = text_at(event, "id")
    delivery.data = event["detail"]
    envelope = at(event, "detail", ENVELOPE)
    key = text_at(envelope, KEY_ATTRIBUTE)
    if key is not None:
        delivery.data = {name: value for name, value in event["detail"].items() if name != ENVELOPE}
        delivery.header = partial(text_at, envelope)
    delivery.key = key or delivery.id
    return [delivery]


def _object(delivery: Delivery) -> None:
    """Take a notification's fields (S3 User Guide, "Event message structure") into a flat dict."""
    record = delivery.raw
    raw = require_text(record, "s3", "object", "key")
    try:
        key = unquote_plus(raw, errors="strict")
    except UnicodeDecodeError as error:
        raise MalformedRecord(f"s3.object.key is not URL-encoded UTF-8: {error}") from error
    fields = {
        "eventName": require_text(record, "eventName"),
        "eventTime": at(record, "eventTime"),
        "bucket": require_text(record, "s3", "bucket", "name"),
        "key": key,
        **{name: at(record, "s3", "object", name) for name in ("versionId", "size", "eTag", "sequencer")},
    }
    delivery.data = data = {name: value for name, value in fields.items() if value is not None}
    moment = text_at(data, "sequencer") or text_at(data, "eventTime")
    if moment is not None:
        version = text_at(data, "versionId")
        delivery.key = (data["bucket"], data["key"], *([version] if version else []), data["eventName"], moment)
