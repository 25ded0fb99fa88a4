"""Sends a message of SQS again that the ledger keeps, and unparks its key (``consumers/unparking.py``)."""

from onceward.aws.dead_letters.letters import Refusal, copied, origin
from onceward.aws.sqs.kept import read_kept
from onceward.aws.sqs.message import Outgoing
from onceward.aws.sqs.queue import Queue
from onceward.aws.sqs.settings import QueueSettings
from onceward.consumers.keeping import opened_kept
from onceward.consumers.unparking import check_keeps, unparked_after
from onceward.core.policy import Seal
from onceward.core.record import Record
from onceward.keys.ledger_keys import derived_key, ledger_key
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
        queue.send(*_copy(record, queue, room, seal))

    return unparked_after(ledger, key, send, queue.name)


def _copy(record: Record, queue: Queue, room: int, seal: Seal | None) -> Outgoing:
    kept = read_kept(opened_kept(record.key, check_keeps(record), seal))
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
