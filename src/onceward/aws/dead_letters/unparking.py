"""Sends a message again that the ledger keeps, and unparks its key.

The copy is sent first. Then the record is unparked, if it still has the version from before the send. A kill in between leaves
a copy in the queue and the message in the record. A worker that receives the copy while the key is parked keeps it again, as
another version (``consumers/keeping.py``), and deletes it. The unparking is then refused, and everything is repeated. Copies
share one key, so a second one replays.
"""

from typing import Final

from onceward.aws.dead_letters.letters import Refusal, copied, origin
from onceward.aws.sqs.kept import read_kept
from onceward.aws.sqs.message import Outgoing
from onceward.aws.sqs.queue import Queue
from onceward.aws.sqs.settings import QueueSettings
from onceward.core import protocol
from onceward.core.drivers import drive
from onceward.core.record import Record
from onceward.errors import OncewardError
from onceward.keys.ledger_keys import derived_key, ledger_key
from onceward.stores.ledger import Ledger

_TRIES: Final = 5  # copies; a worker may receive and keep each before the key is unparked


def unpark_to(ledger: Ledger, key: str, queue: Queue) -> Record:
    """Send the message again that a parked record keeps, and unpark its key; return the record as it is now.

    The copy has the attribute ``onceward-key``, as those of ``onceward redrive``. After a kill you can repeat the call, as long
    as the key is parked.

    Raises:
        NotFound: there is no such key.
        Refusal: the queue does not accept such a message; nothing was sent.
        QueueError: it was not sent, or possibly not; the key is still parked.
        StoreError: the ledger failed; a copy may have been sent.
        OncewardError: the key is not parked, or keeps no message.
    """
    room = QueueSettings.read(queue.attributes()).largest
    for _ in range(_TRIES):
        record, _ = ledger.show(key, whole=True)
        queue.send(*_copy(record, queue, room))
        write = protocol.unparked(record)
        assert write is not None  # it keeps a message
        reply = drive(ledger.store.swap(write, record), ledger.store)
        if reply.won and reply.record is not None:
            return reply.record
    raise OncewardError(
        f"{key}: a worker received each copy before the key was unparked, and kept it again: stop the workers of {queue.name} for a "
        "moment, and try again"
    )


def _copy(record: Record, queue: Queue, room: int) -> Outgoing:
    text = protocol.message_in(record)
    if text is None:
        raise OncewardError(f"{record.key}: it is {record.status} and keeps no message that could be sent")
    kept = read_kept(text)
    if kept.queue.endswith(".fifo") is not queue.fifo:  # the name of a FIFO queue must end so
        raise Refusal(
            f"{record.key}: its message comes from {kept.queue}. One of that and {queue.name} is a FIFO queue, and the other is not: "
            "give a queue of the same kind"
        )
    # Each version of the record has its own id: within five minutes a FIFO queue drops a second message with one id, and the
    # message may have been received, failed and kept again in that time.
    dedup = derived_key(record.key, ("unpark", record.fence, record.beat)) if queue.fifo else None
    name = record.key.partition(":")[0]
    by_default = record.key == ledger_key(name, origin(kept.message))
    return copied(kept.message, dedup, room, by_default=by_default)
