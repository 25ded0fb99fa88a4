"""Reads events: the records of an event as deliveries, and the parts of a record."""

import binascii
from collections.abc import Callable

from onceward.aws.events import KEY_ATTRIBUTE
from onceward.consumers.delivery import Delivery, MalformedRecord
from onceward.errors import OncewardError

Fill = Callable[[Delivery], None]


class MalformedEvent(OncewardError):
    """The event is not from the handler's source. Raised before anything runs.

    Cause: The function has another trigger than its wrapper expects, or you sent an invented test event.

    Fix: Use the wrapper of the trigger, such as ``on_sqs`` for SQS.
    """


def deliveries_of(
    event: object, source: str, fill: Fill, strange: Callable[[object], str | None] = lambda _: None
) -> list[Delivery]:
    """Return the deliveries of an event of ``source``. Single records of another source become malformed deliveries.

    ``strange`` says why a record of that source is not for this handler; None if it is.

    Raises:
        MalformedEvent: it has no list of records, or none of them is for this handler.
    """
    records = at(event, "Records")
    if not isinstance(records, list):
        raise unfit(event, f"events of {source}, which have a list of Records")
    reasons = [_of_another(record, source) or strange(record) for record in records]
    if reasons and None not in reasons:
        raise MalformedEvent(f"{reasons[0]}; nothing has run")
    deliveries = [fill_in(source, record, fill) for record in records]
    for delivery, reason in zip(deliveries, reasons, strict=True):
        if reason is not None:
            delivery.fault = MalformedRecord(f"{reason}; the handler did not run")
    return deliveries


def source_of(event: object, *sources: str) -> str:
    """Return the source of a whole event, the first of ``sources`` if it names none; raises MalformedEvent for another one."""
    source = at(event, "eventSource")
    if isinstance(source, str) and source not in sources:
        raise MalformedEvent(f"{_other_source(sources[0], source)}; nothing has run")
    return source if isinstance(source, str) else sources[0]


def by_name(event: object, field: str, takes: str) -> list[tuple[str, object]]:
    """Return the records of an event that has lists of them by a name, each with that name; raises MalformedEvent."""
    groups = at(event, field)
    if not isinstance(groups, dict) or not all(isinstance(records, list) for records in groups.values()):
        raise unfit(event, takes)
    return [(str(name), record) for name, records in groups.items() for record in records]


def fill_in(source: str, record: object, fill: Fill) -> Delivery:
    """Return a record as a delivery. ``fill`` sets its fields from ``raw``; a MalformedRecord from it becomes the fault."""
    delivery = Delivery(source, record)
    try:
        fill(delivery)
    except MalformedRecord as fault:
        delivery.fault = fault
    return delivery


def unfit(event: object, takes: str) -> MalformedEvent:
    """Return the error for an event that is not of the kind that the handler ``takes``."""
    kind = f"a {type(event).__name__}"
    if isinstance(event, dict):
        kind = f"a dict with {', '.join(map(repr, list(event)[:8])) or 'nothing'}"
    return MalformedEvent(f"this handler takes {takes}, and was given {kind}; nothing has run")


def _other_source(source: str, actual: str) -> str:
    """Return what is wrong with a record or event of the source ``actual``, and what to do."""
    return (
        f"this handler takes events of {source}, and was given a record of {actual!r}. Check what invokes the function"
    )


def _of_another(record: object, source: str) -> str | None:
    actual = at(record, "eventSource") or at(record, "EventSource")  # SNS writes it with a capital
    return _other_source(source, actual) if isinstance(actual, str) and actual != source else None


def at(value: object, *path: str) -> object:
    """Return the value at ``path`` in nested dicts; None if a part is missing."""
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def text_at(value: object, *path: str) -> str | None:
    """Return the str at ``path``; None if it is missing, empty or not a str."""
    for name in path:  # as at(), without a call for each text
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value if isinstance(value, str) and value else None


def require_text(value: object, *path: str) -> str:
    """Return the str at ``path``, which may be empty; raises MalformedRecord if it is missing or not a str."""
    text = at(value, *path)
    if not isinstance(text, str):
        raise MalformedRecord(f"the record has no {'.'.join(path)}, or it is not text")
    return text


def last_part(arn: str | None) -> str | None:
    """Return the name in an ARN; None if there is none."""
    return (arn or "").rpartition(":")[2] or None


def notification(delivery: Delivery, envelope: object) -> None:
    """Take SNS's message out of its envelope (SNS Developer Guide, "Amazon SNS message and JSON formats")."""
    delivery.body = require_text(envelope, "Message")
    attributes = at(envelope, "MessageAttributes")
    delivery.header = lambda name: text_at(attributes, name, "Value")
    delivery.key = delivery.header(KEY_ATTRIBUTE) or text_at(envelope, "MessageId")
    delivery.destination = last_part(text_at(envelope, "TopicArn"))


def from_base64(text: str, what: str) -> bytes:
    """Return the bytes of a base64 text; raises MalformedRecord, which names ``what``."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:  # binascii.Error, or text that is not ASCII
        raise MalformedRecord(f"{what} is not base64: {error}") from error


def text_of_bytes(numbers: object) -> str | None:
    """Return the text of a header, which Lambda gives as a list of its bytes; None if it is no such list."""
    try:
        data = (
            bytes(number & 0xFF for number in numbers) if isinstance(numbers, list) else None
        )  # Java's can be negative
    except TypeError:
        return None
    return None if data is None else data.decode(errors="backslashreplace")
