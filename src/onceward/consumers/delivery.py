"""One decoded record of an event, and the errors about events and records that cannot be read."""

import binascii
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from onceward.errors import OncewardError

if TYPE_CHECKING:
    from onceward.batch.outcomes import BatchOutcome

KEY_ATTRIBUTE: Final = "onceward-key"  # the message attribute of SQS that says what a message's key is by default


class MalformedEvent(OncewardError):
    """The event is not one of the source that the handler is for. Raised before anything has run."""


class MalformedRecord(OncewardError):
    """One record of an event cannot be read: the ``error`` of its outcome, whose status is ``malformed``."""


class BatchFailed(OncewardError):
    """Records of an event failed, and the invocation fails with them, so that the event is delivered again.

    What was done is in the ledger, and is not done again.

    Attributes:
        outcomes: what became of each record, in the order of the event.
    """

    def __init__(self, message: str, outcomes: "Sequence[BatchOutcome]" = ()) -> None:
        super().__init__(message)
        self.outcomes = outcomes


_UNREAD: Final = object()


class Delivery:
    """One record of an event.

    Attributes:
        source: where it comes from, such as ``aws:sqs``.
        raw: the record as it came, usually a dict; of a record in a KPL aggregate, the record around it with the inner
            one's own fields.
        id: what the source's response calls it, such as an SQS message id; None when it has none.
        key: the key that it has by default; None when it has none.
        group: the records of one group are handled in order (a FIFO queue's message group, a Kafka partition); or None.
        body: the payload as it came, text or bytes; None when the source gives an object.
        fault: why it cannot be read, or None.
    """

    # What sources send has no type to vouch for, and users go on into it.
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
        """The payload: JSON when it is JSON, else str, else bytes; or the object that the source gives."""
        if self._data is _UNREAD:
            self._data = None if self.body is None else decoded(self.body)
        return self._data

    @data.setter
    def data(self, value: object) -> None:
        self._data = value


def fields_of(delivery: Delivery) -> dict[str, object]:
    """Return a delivery as a key path sees it, in which ``order.id`` of the payload is ``data.order.id``."""
    return {name: getattr(delivery, name) for name in ("source", "id", "key", "group", "body", "data", "raw")}


def decoded(body: str | bytes) -> object:
    """Return ``body`` as JSON when it is JSON, else as str, or as bytes that are neither."""
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
    """Return the deliveries of an event of ``source``; a record of another one, among others, is a malformed delivery.

    Args:
        event: as Lambda gives it.
        source: what its records say that they are of.
        read: makes a record its deliveries, which need not be readable.
        strange: says why a record of that source is not for this handler; None when it is.

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
    """Return what is wrong with a record or event that is of the source ``found``, and what to do."""
    other = _WRAPPERS.get(found)
    right = f"Use onceward.aws.{other}" if other else "Check what invokes the function"
    return f"this handler takes events of {source}, and was given a record of {found!r}. {right}"


def _of_another(record: object, source: str) -> str | None:
    found = at(record, "eventSource") or at(record, "EventSource")  # SNS writes it with a capital
    return other_source(source, found) if isinstance(found, str) and found != source else None


def described(event: object) -> str:
    """Return in a few words what an event looks like."""
    if not isinstance(event, dict):
        return f"a {type(event).__name__}"
    return f"a dict with {', '.join(map(repr, list(event)[:8])) or 'nothing'}"


def at(value: object, *path: str) -> object:
    """Return what is at ``path`` in nested dicts; None when a part is missing."""
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def text_at(value: object, *path: str) -> str | None:
    """Return the str at ``path``; None when it is missing, empty or no str."""
    found = at(value, *path)
    return found if isinstance(found, str) and found else None


def needed(value: object, *path: str) -> str:
    """Return the str at ``path``, which may be empty; raises MalformedRecord when it is missing or no str."""
    found = at(value, *path)
    if not isinstance(found, str):
        raise MalformedRecord(f"the record has no {'.'.join(path)}, or one that is no text")
    return found


def from_base64(text: str, what: str) -> bytes:
    """Return the bytes of a base64 text; raises MalformedRecord, which names ``what`` it is."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:  # binascii.Error, or text that is not ASCII
        raise MalformedRecord(f"{what} is not base64: {error}") from error
