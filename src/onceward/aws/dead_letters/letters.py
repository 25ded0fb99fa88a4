"""A message of a dead-letter queue: its key in the ledger, and its copy for another queue. No I/O."""

from typing import Final, NamedTuple

from onceward.aws.events import KEY_ATTRIBUTE
from onceward.aws.events.sqs import Unwrap, check_unwrap, message_delivery
from onceward.aws.sqs.broker import record_of
from onceward.aws.sqs.message import (
    LARGEST,
    MOST_ATTRIBUTES,
    Attribute,
    Message,
    Outgoing,
    entry_of,
    read_kept,
    size_of,
)
from onceward.aws.sqs.queue import Queue, QueueSettings
from onceward.consumers.delivery import Delivery
from onceward.consumers.keeping import opened_kept
from onceward.consumers.reader import DELIVERY_NAME, default_key
from onceward.consumers.redriving import check_keeps, unparked_after
from onceward.core.policy import Seal
from onceward.core.record import Record
from onceward.errors import OncewardError
from onceward.keys.ledger_keys import derived_key, ledger_key
from onceward.keys.paths import fixed
from onceward.keys.reading import KeyReader
from onceward.stores.ledger import Ledger


def unpark_to(ledger: Ledger, key: str, queue: Queue, seal: Seal | None = None) -> Record:
    """Send the message again that a parked record keeps, and unpark its key; return the record as it is now.

    The copy has the attribute ``onceward-key``, as those of ``onceward redrive``. After a kill you can repeat the call, as long
    as the key is parked. ``seal`` is that of the workers.

    Raises:
        NotFound: there is no such key.
        Refusal: the queue does not accept such a message; nothing was sent.
        QueueError: it was not sent, or possibly not; the key is still parked.
        StoreError: the ledger failed; a copy may have been sent.
        OncewardError: the key is not parked, or keeps no message, or ``seal`` cannot open it.
    """
    check_keeps(ledger.show(key)[0])
    room = QueueSettings.read(queue.attributes()).largest

    def send(record: Record) -> None:
        queue.send(_copy(record, queue, room, seal))

    return unparked_after(ledger, key, send, queue.name)


def _copy(record: Record, queue: Queue, room: int, seal: Seal | None) -> Outgoing:
    stored = read_kept(opened_kept(record.key, check_keeps(record), seal))
    if stored.queue.endswith(".fifo") is not queue.fifo:  # the name of a FIFO queue must end so
        raise Refusal(
            f"{record.key}: its message comes from {stored.queue}. Only one of that and {queue.name} is a FIFO queue: "
            "give a queue of the same kind"
        )
    # Each version of the record has its own id: within five minutes a FIFO queue drops a second message with one id, and the
    # message may have been received, failed and kept again in that time.
    dedup = derived_key(record.key, ("unpark", record.fence, record.beat)) if queue.fifo else None
    name = record.key.partition(":")[0]
    by_default = record.key == ledger_key(name, origin(stored.message))
    return copy_of(stored.message, dedup, room, by_default=by_default)


_BODY: Final = fixed("body", "the decoded body of the message")


class Refusal(OncewardError):
    """A message stays in the dead-letter queue; the text says why."""


class LetterReading(NamedTuple):
    """What is read from a message."""

    origin: str  # the default key, as of the original message
    key: str  # in the ledger
    fingerprint: str | None = None  # of its input; None if its consumer compares none, or if it is unknown


class Letters:
    """Reads the messages of a dead-letter queue as the consumer of its source queue does.

    The arguments are those of :class:`onceward.aws.Redrive`.

    Attributes:
        by_default: whether the consumer uses the default key.

    Raises:
        ValueError: an expression or ``unwrap`` is not valid.
    """

    def __init__(
        self,
        name: str,
        key: str | None = None,
        unwrap: Unwrap | None = None,
        fingerprint: str | None = None,
    ) -> None:
        check_unwrap(unwrap)
        self._name, self._unwrap = name, unwrap
        self._keys = KeyReader(default_key if key is None else key, fingerprint, _BODY, more=(DELIVERY_NAME,))
        self.by_default = key is None and unwrap is None  # with unwrap, the key is in SNS's envelope

    def read(self, message: Message) -> LetterReading:
        """Return the keys of a message.

        Raises:
            Refusal: it has none.
        """
        try:
            delivery = self._delivery(message)
            if delivery.fault is not None:
                raise delivery.fault
            args = {"body": delivery.data}
            key = self._keys.key(args, {DELIVERY_NAME: delivery})
            return LetterReading(origin(message), ledger_key(self._name, key), self._keys.fingerprint(args, args))
        except (OncewardError, TypeError) as error:
            raise Refusal(f"its key cannot be read: {error}") from error

    def _delivery(self, message: Message) -> Delivery:
        return message_delivery(record_of(message, ""), unwrap=self._unwrap, fifo=False)


def copy_of(message: Message, dedup: str | None, room: int, *, by_default: bool) -> Outgoing:
    """Return a copy of a message, with its default key as an attribute.

    SQS gives the copy a new message id. If that became its key, the effect could happen again. ``dedup`` is the copy's
    deduplication id, the same each time; None in a standard queue. ``room`` is the most bytes of a message in the target queue.

    Raises:
        Refusal: the consumer uses the default key (``by_default``), and there is no room for the attribute.
    """
    same = Outgoing(message.body, message.user_attributes, message.group, dedup)
    if origin(message) != message.id:
        return same
    attributes = {**message.user_attributes, KEY_ATTRIBUTE: Attribute("String", message.id)}
    marked = same._replace(attributes=attributes)
    if len(attributes) > MOST_ATTRIBUTES:
        full = f"it has {MOST_ATTRIBUTES} attributes, and SQS takes no more"
    elif (size := size_of(entry_of(marked))) > room:
        full = (
            f"with it the message has {size} bytes, and its target takes {room} (MaximumMessageSize, up to {LARGEST})"
        )
    else:
        return marked
    if not by_default:
        return same
    raise Refusal(
        f"there is no room for {KEY_ATTRIBUTE}: {full}. Without it the copy has another key, and its effect could happen "
        "twice. Send it by hand, or give the consumer a key from the body, and --key to `onceward redrive`"
    )


def origin(message: Message) -> str:
    """Return the default key of a message: its attribute's, else its id."""
    value = message.user_attributes.get(KEY_ATTRIBUTE, Attribute("", "")).value
    return value if isinstance(value, str) and value else message.id
