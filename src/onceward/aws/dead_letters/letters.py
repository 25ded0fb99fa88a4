"""A message of a dead-letter queue: its key in the ledger, and its copy for another queue. No I/O."""

from onceward.aws.events import KEY_ATTRIBUTE
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
from onceward.consumers.keeping import opened_kept
from onceward.consumers.redriving import check_keeps, unparked_after
from onceward.core.policy import Seal
from onceward.core.record import Record
from onceward.errors import OncewardError
from onceward.keys.ledger_keys import derived_key
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
    return copy_of(stored.message, dedup, room)


class Refusal(OncewardError):
    """A message stays in the dead-letter queue; the text says why."""


def copy_of(message: Message, dedup: str | None, room: int) -> Outgoing:
    """Return a copy of a message, with its default key as an attribute.

    SQS gives the copy a new message id. If that became its key, the effect could happen again. ``dedup`` is the copy's
    deduplication id, the same each time; None in a standard queue. ``room`` is the most bytes of a message in the target queue.

    Raises:
        Refusal: there is no room for the attribute.
    """
    attributes = {**message.user_attributes, KEY_ATTRIBUTE: Attribute("String", origin(message))}
    copy = Outgoing(message.body, attributes, message.group, dedup)
    if len(attributes) > MOST_ATTRIBUTES:
        full = f"it has {MOST_ATTRIBUTES} attributes, and SQS takes no more"
    elif (size := size_of(entry_of(copy))) > room:
        full = (
            f"with it the message has {size} bytes, and its target takes {room} (MaximumMessageSize, up to {LARGEST})"
        )
    else:
        return copy
    raise Refusal(
        f"there is no room for {KEY_ATTRIBUTE}: {full}. Without it the copy could have another key, and its effect happen twice: send "
        "it by hand"
    )


def origin(message: Message) -> str:
    """Return the default key of a message: its attribute's, else its id."""
    return message.user_attributes.get(KEY_ATTRIBUTE, Attribute("")).value or message.id
