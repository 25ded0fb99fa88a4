"""One decoded record of an event, and the errors about events and records that cannot be read."""

import binascii
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from onceward.errors import OncewardError

if TYPE_CHECKING:
    from onceward.batch.outcomes import BatchOutcome

KEY_ATTRIBUTE: Final = "onceward-key"  # the SQS message attribute with a message's default key


class MalformedEvent(OncewardError):
    """The event is not from the handler's source. Raised before anything runs."""


class MalformedRecord(OncewardError):
    """One record of an event cannot be read: the ``error`` of its outcome, whose status is ``malformed``."""


class BatchFailed(OncewardError):
    """Records of an event failed, so the invocation fails and the event is delivered again.

    Finished records are in the ledger and do not run again.

    Attributes:
        outcomes: one for each record, in the order of the event.
    """

    def __init__(self, message: str, outcomes: "Sequence[BatchOutcome]" = ()) -> None:
        super().__init__(message)
        self.outcomes = outcomes


_UNREAD: Final = object()


class Delivery:
    """One record of an event.

    Attributes:
        source: where it comes from, such as ``aws:sqs``.
        raw: the record as it came, usually a dict. In a KPL aggregate, the outer record with the inner one's own fields.
        id: its name in the source's response, such as an SQS message id; or None.
        key: its default key, or None.
        group: the records of one group are handled in order (a FIFO queue's message group, a Kafka partition); or None.
        body: the payload as it came, text or bytes; None if the source gives an object.
        fault: why it cannot be read, or None.
    """

    # Any: sources promise no type, and users index into it.
    raw: Any

    __slots__ = ("_data", "body", "fault", "group", "id", "key", "raw", "source")

    def __init__(self, source: str, raw: object) -> None:
        self.source = source
        self.raw = raw
        self.id: Hashable | None = None
        self.key: object = None
        self.group: str | None = None
        self.body: str | bytes | None = None
        self.fault: MalformedRecord | None = None
        self._data: object = _UNREAD

    def __repr__(self) -> str:
        return f"Delivery({self.source!r}, id={self.id!r})"

    @property
    def data(self) -> Any:
        """The payload: decoded JSON, else str, else bytes; or the object that the source gives."""
        if self._data is _UNREAD:
            self._data = None if self.body is None else decoded(self.body)
        return self._data

    @data.setter
    def data(self, value: object) -> None:
        self._data = value


def fields_of(delivery: Delivery) -> dict[str, object]:
    """Return a delivery as a key path sees it: ``order.id`` of the payload is ``data.order.id``."""
    return {name: getattr(delivery, name) for name in ("source", "id", "key", "group", "body", "data", "raw")}


def decoded(body: str | bytes) -> object:
    """Return ``body`` decoded from JSON, else as str, else as bytes."""
    try:
        return cast("object", msgspec.json.decode(body))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass  # ValueError: text that is not UTF-8, or has lone surrogates
    if isinstance(body, str):
        return body
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body


# --- reading events -------------------------------------------------------------------------------------------------

_WRAPPERS = {
    "aws:sqs": "on_sqs",
    "aws:kinesis": "on_kinesis",
    "aws:dynamodb": "on_dynamodb_stream",
    "aws:sns": "on_sns",
    "aws:s3": "on_s3",
}


def deliveries_of(
    event: object,
    source: str,
    read: Callable[[object], "Iterable[Delivery]"],
    strange: Callable[[object], str | None] = lambda _: None,
) -> "list[Delivery]":
    """Return the deliveries of an event of ``source``. Single records of another source become malformed deliveries.

    Args:
        event: as Lambda gives it.
        source: the source that its records name.
        read: makes deliveries from a record; these can have a ``fault``.
        strange: says why a record of that source is not for this handler; None if it is.

    Raises:
        MalformedEvent: it has no list of records, or none of them is for this handler.
    """
    records = at(event, "Records")
    if not isinstance(records, list):
        raise MalformedEvent(
            f"this handler takes events of {source}, which have a list of Records, and was given {described(event)}; "
            "nothing has run"
        )
    reasons = [_of_another(record, source) or strange(record) for record in records]
    if reasons and None not in reasons:
        raise MalformedEvent(f"{reasons[0]}; nothing has run")
    deliveries: list[Delivery] = []
    for record, reason in zip(records, reasons, strict=True):
        for delivery in read(record):
            if reason is not None:
                delivery.fault = MalformedRecord(f"{reason}; the handler did not run")
            deliveries.append(delivery)
    return deliveries


def other_source(source: str, found: str) -> str:
    """Return what is wrong with a record or event of the source ``found``, and what to do."""
    other = _WRAPPERS.get(found)
    right = f"Use onceward.aws.{other}" if other else "Check what invokes the function"
    return f"this handler takes events of {source}, and was given a record of {found!r}. {right}"


def _of_another(record: object, source: str) -> str | None:
    found = at(record, "eventSource") or at(record, "EventSource")  # SNS writes it with a capital
    return other_source(source, found) if isinstance(found, str) and found != source else None


def described(event: object) -> str:
    """Describe an event in a few words."""
    if not isinstance(event, dict):
        return f"a {type(event).__name__}"
    return f"a dict with {', '.join(map(repr, list(event)[:8])) or 'nothing'}"


def at(value: object, *path: str) -> object:
    """Return the value at ``path`` in nested dicts; None if a part is missing."""
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def text_at(value: object, *path: str) -> str | None:
    """Return the str at ``path``; None if it is missing, empty or not a str."""
    found = at(value, *path)
    return found if isinstance(found, str) and found else None


def needed(value: object, *path: str) -> str:
    """Return the str at ``path``, which may be empty; raises MalformedRecord if it is missing or not a str."""
    found = at(value, *path)
    if not isinstance(found, str):
        raise MalformedRecord(f"the record has no {'.'.join(path)}, or one that is no text")
    return found


def from_base64(text: str, what: str) -> bytes:
    """Return the bytes of a base64 text; raises MalformedRecord, which names ``what``."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:  # binascii.Error, or text that is not ASCII
        raise MalformedRecord(f"{what} is not base64: {error}") from error
