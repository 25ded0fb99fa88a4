"""Sends a message again that the ledger keeps, and unparks its key.

The copy is sent first. Then the record is unparked, if it still has the version from before the send. A kill in between leaves
a copy in the queue and the message in the record. A worker that receives the copy while the key is parked keeps it again, as
another version (``consumers/keeping.py``), and deletes it. The unparking is then refused, and everything is repeated. Copies
share one key, so a second one replays.
"""

from collections.abc import Callable
from typing import Final

from onceward.core import protocol
from onceward.core.drivers import drive
from onceward.core.record import PARKED, Record
from onceward.errors import OncewardError
from onceward.stores.ledger import Ledger

_TRIES: Final = 5  # copies; a worker may receive and keep each before the key is unparked


def check_keeps(record: Record) -> str:
    """Return the message that a record keeps, as text; raises OncewardError if there is none."""
    text = protocol.message_in(record)
    if text is None:
        why = "is not parked" if record.status != PARKED else "keeps no message: leave out --to"
        raise OncewardError(f"{record.key}: it is {record.status} and {why}")
    return text


def unparked_after(ledger: Ledger, key: str, send: Callable[[Record], None], queue: str) -> Record:
    """Let ``send`` send the message to ``queue`` that a parked record keeps, and unpark its key; return the record as it is now.

    Raises:
        NotFound: there is no such key.
        StoreError: the ledger failed; a copy may have been sent.
        OncewardError: the key is not parked, or keeps no message.
    """
    for _ in range(_TRIES):
        record, _ = ledger.show(key, whole=True)
        check_keeps(record)
        send(record)
        write = protocol.unparked(record)
        assert write is not None  # it keeps a message
        reply = drive(ledger.store.swap(write, record), ledger.store)
        if reply.won and reply.record is not None:
            return reply.record
    raise OncewardError(
        f"{key}: a worker received each copy before the key was unparked, and kept it again: stop the workers of {queue} for a "
        "moment, and try again"
    )
