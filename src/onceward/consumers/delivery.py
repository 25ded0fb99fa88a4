"""One record of an event, or one message of a queue, as handlers and keys see it."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from onceward.core.policy import Options
from onceward.core.retries import jittered
from onceward.errors import Busy, OncewardError
from onceward.keys.json_reading import NotJson, read_json

if TYPE_CHECKING:
    from onceward.batch.outcomes import BatchOutcome
    from onceward.keys.reading import KeySource
    from onceward.observe.spans import Incoming

_LEAST: Final = 1.0  # seconds between two tries of a busy key


class Backoff(NamedTuple):
    """How long a failed message stays away, in seconds: twice as long after each receive."""

    first: float
    longest: float

    def seconds(self, receives: int) -> float:
        """Return the pause after ``receives`` receives. Jitter keeps messages that failed together apart."""
        pause = self.first * 2.0 ** min(receives - 1, 60)
        return jittered(min(self.longest, pause)).seconds


def time_away(outcome: "BatchOutcome", receives: int, backoff: Backoff, *, goes: bool) -> float:
    """Return for how many seconds a message that cannot be acknowledged stays away.

    ``receives`` is how often it was received; ``goes`` whether the broker itself removes it after some more.
    """
    if outcome.status == "deferred":
        return 0.0  # an ordered group waits anyway for its failed message, which is still away
    if outcome.status == "busy":
        return max(_LEAST, outcome.error.retry_after) if isinstance(outcome.error, Busy) else _LEAST
    if outcome.status == "failed":
        return backoff.seconds(receives)
    # Parked, mismatch, malformed: a retry does not help. If the broker removes it, let that be soon. Otherwise it comes rarely,
    # until the ledger keeps it or somebody fixes the cause.
    return backoff.first if goes else backoff.longest


class DeliveryOptions(Options, total=False):
    """The keywords that all handlers of deliveries take, besides those of :class:`onceward.Policy`.

    Attributes:
        key: a JMESPath expression (jmespath.org) that begins with a parameter of the function: "order.id" is the ``id`` of
            the payload for ``def charge(order)``. Or a callable that gets the arguments it names, or the :class:`Delivery`
            if its parameter is annotated so. By default the source's own key.
        fingerprint: the same, or True for the whole payload: what must not change under one key.
        name: the namespace of the keys; by default the function's module and qualified name, in Lambda after the name of the
            Lambda function.
    """

    key: "KeySource | None"
    fingerprint: "KeySource | bool | None"
    name: str | None


class MalformedRecord(OncewardError):
    """One record of an event cannot be read: the ``error`` of its outcome, whose status is ``malformed``.

    Cause: The body is not JSON, or programs read this JSON differently. Or it does not fit the handler's annotation, or
    comes from another source.

    Fix: Correct the program that sends such records. The record itself goes to the dead-letter queue, if the source has
    one.
    """


_UNREAD: Final = object()


def no_header(_: str) -> None:
    """Return that there is no such header."""


@dataclass(slots=True, eq=False, repr=False)
class Delivery:
    """One record of an event.

    Attributes:
        source: where it comes from, such as ``aws:sqs``.
        raw: the record as it came, usually a dict. In an aggregate of the Kinesis Producer Library, the outer record
            with the inner one's fields.
        id: its name in the source's response, such as an SQS message id; or None.
        key: its default key, or None.
        group: the records of one group are handled in order (a FIFO queue's message group, a Kafka partition); or None.
        body: the payload as it came, text or bytes; None if the source gives an object.
        header: returns the text of a header or message attribute, or None.
        destination: the queue or topic, or None.
        fault: why it cannot be read, or None.
        not_json: why ``data`` is text or bytes, or None.
        place: where it is in its source, for people; by default its ``id``.
    """

    source: str
    raw: Any  # sources promise no type, and users index into it
    id: Hashable | None = None
    key: object = None
    group: str | None = None
    body: str | bytes | None = None
    header: Callable[[str], str | None] = no_header
    destination: str | None = None
    fault: MalformedRecord | None = None
    not_json: NotJson | None = None
    place: str | None = None
    _data: object = field(default=_UNREAD, init=False)

    def __repr__(self) -> str:
        return f"Delivery({self.source!r}, id={self.id!r})"

    @property
    def named(self) -> str:
        """Its name for people, such as "the record orders/0/15 of kafka"."""
        place = self.id if self.place is None else self.place
        if place is None:
            place = self.key
        if isinstance(place, tuple):
            place = "/".join(map(str, place))
        return f"a record of {self.source}" if place is None else f"the record {place} of {self.source}"

    def comes(self) -> "Incoming":
        """Return the source, the id and the headers of the message, for traces."""
        from onceward.observe.spans import Incoming  # only who makes spans asks

        return Incoming(self.header, self.source, self.destination, None if self.id is None else str(self.id))

    @property
    def data(self) -> Any:
        """The payload: decoded JSON, else str, else bytes; or the object that the source gives.

        Raises:
            MalformedRecord: it is almost JSON, such as JSON with NaN or with a name twice.
        """
        return self.read()

    @data.setter
    def data(self, value: object) -> None:
        self._data = value

    def read(self) -> object:
        """Return ``data``. The body is decoded only once. Raises MalformedRecord if it is almost JSON."""
        if self._data is _UNREAD:
            self._data = None if self.body is None else self._read(self.body)
        return self._data

    def _read(self, body: str | bytes) -> object:
        try:
            return read_json(body)
        except NotJson as error:
            if error.almost and error.looks:
                raise MalformedRecord(f"the payload is {error}") from error
            self.not_json = error
        if isinstance(body, str):
            return body
        try:
            return body.decode()
        except UnicodeDecodeError:
            return body


def fields_of(delivery: Delivery) -> dict[str, object]:
    """Return a delivery as a key path sees it: ``order.id`` of the payload is ``data.order.id``."""
    return {name: getattr(delivery, name) for name in ("source", "id", "key", "group", "body", "data", "raw")}
